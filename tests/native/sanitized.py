"""Runs the native code's tests with it built under ASan and UBSan (make test-native-sanitized).

The extension is built into a copy of the loader, which goes before the installed one. Any report
of a sanitizer ends the tests.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[2]
TESTS = (
    "tests/unit/test_binding.py",
    "tests/unit/test_evaluate.py",
    "tests/launch/test_native.py",
    "tests/launch/test_launch.py",
    "tests/launch/test_graphs.py",
    "tests/launch/test_threads.py",
    "tests/launch/test_op.py",
    "tests/launch/test_op_keys.py",
)
FLAGS = (
    *("-std=gnu11", "-O1", "-g", "-fno-omit-frame-pointer", "-shared", "-fPIC"),
    *("-fsanitize=address,undefined", "-fno-sanitize-recover=all"),
)


def main() -> int:
    with tempfile.TemporaryDirectory(prefix="flyc-sanitized-") as scratch:
        copy = Path(scratch)
        for name in ("runtime_loader", "flyc_cli", "mlir_passes", "tests", "manifests"):
            ignore = shutil.ignore_patterns("__pycache__", "*.so")
            shutil.copytree(ROOT / name, copy / name, ignore=ignore)
        shutil.copy(ROOT / "pyproject.toml", copy)
        suffix = sysconfig.get_config_var("EXT_SUFFIX")
        sources = sorted((copy / "runtime_loader" / "csrc").glob("*.c"))
        output = copy / "runtime_loader" / f"_native{suffix}"
        include = f"-I{sysconfig.get_paths()['include']}"
        subprocess.run(["gcc", *FLAGS, include, *sources, "-o", output], check=True)
        runtimes = [
            subprocess.run(
                ["gcc", f"-print-file-name={name}"], capture_output=True, text=True, check=True
            ).stdout.strip()
            for name in ("libasan.so", "libubsan.so")
        ]
        environment = {
            **os.environ,
            "LD_PRELOAD": ":".join(runtimes),
            # CPython and torch keep memory until the process ends.
            "ASAN_OPTIONS": "detect_leaks=0:abort_on_error=1",
            "UBSAN_OPTIONS": "print_stacktrace=1",
            "PYTHONPATH": scratch,
            # Every object is an allocation of its own, which ASan can watch.
            "PYTHONMALLOC": "malloc",
        }
        command = [sys.executable, "-m", "pytest", "-q", "-k", "native", "-p", "no:cacheprovider"]
        return subprocess.run(
            [*command, *TESTS, *sys.argv[1:]], cwd=scratch, env=environment, check=False
        ).returncode


if __name__ == "__main__":
    sys.exit(main())
