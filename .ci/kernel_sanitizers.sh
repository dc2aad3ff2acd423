#!/bin/sh
# The kernel's tests under AddressSanitizer and UndefinedBehaviorSanitizer, with every invariant of the
# tree checked after every pivot (OTB_CHECK). Builds in a copy; needs g++.
#     .ci/kernel_sanitizers.sh [pytest arguments]
# OT_BACKENDS_KERNEL_PROBLEMS and OT_BACKENDS_KERNEL_EXAMPLES lengthen the random tests and the fuzzing.
set -eu
python=${PYTHON:-python}
here=$(cd "$(dirname "$0")/.." && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cp -r "$here/ot_backends" "$here/tests" "$here/setup.py" "$here/pyproject.toml" "$here/LICENSE" "$work"
find "$work/ot_backends" -name '*.so' -delete
cd "$work"
flags="-O1 -g -fno-omit-frame-pointer -fsanitize=address,undefined -fno-sanitize-recover=all -DOTB_CHECK"
OT_BACKENDS_CFLAGS=$flags "$python" setup.py --quiet build_ext --inplace
libraries="$(g++ -print-file-name=libasan.so):$(g++ -print-file-name=libubsan.so):$(g++ -print-file-name=libstdc++.so)"
# CPython itself never frees everything.
ASAN_OPTIONS=detect_leaks=0 LD_PRELOAD=$libraries PYTHONPATH=$work \
    "$python" -m pytest tests/test_kernel.py tests/test_kernel_levels.py -q -p no:cacheprovider "$@"
