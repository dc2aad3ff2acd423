"""The compiled parts, both optional: without a compiler the package uses POT's kernel."""

import os
import platform
import shutil
import sys
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

SOURCES = "ot_backends/host/kernel"
HEADERS = sorted(f"{SOURCES}/{name}" for name in os.listdir(SOURCES) if name.endswith(".hpp"))
# No contraction into fused multiply-adds: every instruction set gives the same bits.
FLAGS = ["-std=c++17", "-O3", "-ffp-contract=off", "-fvisibility=hidden", "-fno-math-errno", "-g0"]
if sys.platform == "linux":
    FLAGS.append("-Wno-psabi")
if platform.machine().lower() in ("x86_64", "amd64"):
    FLAGS.append("-msse4.2")  # x86-64-v2; faster instruction sets are chosen at run time
EXTRA = os.environ.get("OT_BACKENDS_CFLAGS", "").split()


def extension(name: str, source: str, include: str) -> Extension:
    """One compiled module of the kernel."""
    return Extension(
        f"ot_backends.host.{name}",
        [f"{SOURCES}/{source}"],
        include_dirs=[include],
        depends=HEADERS,
        extra_compile_args=FLAGS + EXTRA,
        extra_link_args=EXTRA,
        optional=True,
    )


def extensions() -> list[Extension]:
    """What can be built here."""
    import numpy

    found = [extension("_kernel", "module.cpp", numpy.get_include())]
    try:  # XLA's headers ship with jaxlib, which build isolation brings; without it JAX calls back
        import jaxlib
    except ImportError:
        return found
    headers = os.path.join(os.path.dirname(jaxlib.__file__), "include")
    if os.path.isdir(headers):
        found.append(extension("_kernel_ffi", "ffi.cpp", headers))
    return found


class BuildBoth(build_ext):
    """Leaves a copy in the source tree, which ``python -m ot_backends`` in a clone runs."""

    def run(self) -> None:
        """Build, then copy."""
        super().run()
        if not self.inplace:
            for built in map(Path, self.get_outputs()):
                if built.exists():  # optional: the compiler may have failed
                    shutil.copy(built, Path(__file__).parent / built.relative_to(self.build_lib))


setup(ext_modules=extensions(), cmdclass={"build_ext": BuildBoth})
