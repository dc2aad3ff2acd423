"""The compiled parts. Both are optional: without a compiler the package installs and uses POT's kernel."""

import os
import platform
import sys

from setuptools import Extension, setup

SOURCES = "ot_backends/host/kernel"
HEADERS = sorted(f"{SOURCES}/{name}" for name in os.listdir(SOURCES) if name.endswith(".hpp"))
# No contraction into fused multiply-adds: every instruction set gives the same bits.
FLAGS = ["-std=c++17", "-O3", "-ffp-contract=off", "-fvisibility=hidden", "-fno-math-errno"]
if sys.platform == "linux":
    FLAGS.append("-Wno-psabi")
if platform.machine().lower() in ("x86_64", "amd64"):
    FLAGS.append("-msse4.2")  # x86-64-v2; faster instruction sets are chosen at run time
EXTRA = os.environ.get("OT_BACKENDS_CFLAGS", "").split()


def extensions() -> list[Extension]:
    import numpy

    found = [
        Extension(
            "ot_backends.host._kernel",
            [f"{SOURCES}/module.cpp"],
            include_dirs=[numpy.get_include()],
            depends=HEADERS,
            extra_compile_args=FLAGS + EXTRA,
            extra_link_args=EXTRA,
            optional=True,
        )
    ]
    return found


setup(ext_modules=extensions())
