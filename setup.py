"""Builds the C kernels; everything else stands in pyproject.toml.

Without a compiler the build goes on without them, and playhead works on their Python reference.
"""

import os
import sys
import sysconfig

from setuptools import Extension, setup

# One wheel for all CPython versions of a platform, but for free-threaded builds, which have no
# stable ABI.
stable = sys.implementation.name == "cpython" and not sysconfig.get_config_var("Py_GIL_DISABLED")

setup(
    ext_modules=[
        Extension(
            "playhead._kernels",
            ["src/playhead/_kernels.c"],
            define_macros=[("Py_LIMITED_API", "0x030B0000")] if stable else [],
            extra_compile_args=["/O2"]
            if os.name == "nt"
            else ["-O3", "-Wall", "-Wextra", "-Werror=implicit"],
            py_limited_api=stable,
            optional=True,
        )
    ],
    options={"bdist_wheel": {"py_limited_api": "cp311"}} if stable else {},
)
