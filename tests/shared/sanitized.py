"""Tests on kernels that are compiled with a sanitizer: python sanitized.py address,undefined TESTS…"""

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
LIBRARIES = {"address": "libasan.so", "thread": "libtsan.so"}

FIRST = """
import importlib, importlib.machinery, importlib.util, sys
for package, path in {modules!r}.items():
    name = package + ".kernels._kernels"
    loader = importlib.machinery.ExtensionFileLoader(name, path)
    module = sys.modules[name] = importlib.util.module_from_spec(importlib.util.spec_from_loader(name, loader))
    loader.exec_module(module)
    importlib.import_module(package + ".kernels")._kernels = module
import pytest
sys.exit(pytest.main({tests!r}))
"""


def main(sanitizers, tests):
    options = [f"-DQPSBGD_SANITIZE={sanitizers}", f"-DPython_EXECUTABLE={sys.executable}", "-DCMAKE_BUILD_TYPE=Release"]
    modules = {}
    for package in ("qpsbgd_qubo", "qpsbgd_runtime"):
        source = ROOT / "packages" / package.replace("_", "-")
        folder = ROOT / "build" / f"{package}-{sanitizers.replace(',', '-')}"
        subprocess.run(["cmake", "-S", source, "-B", folder, *options], check=True, stdout=subprocess.DEVNULL)
        subprocess.run(["cmake", "--build", folder, "--parallel", "2"], check=True, stdout=subprocess.DEVNULL)
        modules[package] = str(next(folder.glob("_kernels*.so")))
    library = LIBRARIES[sanitizers.split(",")[0]]
    # The C++ library beside it, or the sanitizer does not find what throws exceptions.
    preloaded = [
        subprocess.run(["c++", f"-print-file-name={name}"], capture_output=True, text=True, check=True).stdout.strip()
        for name in (library, "libstdc++.so")
    ]
    # Python itself leaks by design, and its workers are forked.
    settings = {
        "LD_PRELOAD": ":".join(preloaded),
        "ASAN_OPTIONS": "detect_leaks=0:abort_on_error=1",
        "UBSAN_OPTIONS": "halt_on_error=1:print_stacktrace=1",
        "TSAN_OPTIONS": "halt_on_error=1:report_thread_leaks=0",
        "OPENBLAS_NUM_THREADS": "1",  # numpy's threads are not seen by TSan, which takes their work for races
    }
    # -s: what a sanitizer prints before it ends the process would be lost with what pytest captures.
    code = FIRST.format(modules=modules, tests=["-q", "-s", "-p", "no:cacheprovider", "-m", "not slow", *tests])
    sys.exit(subprocess.run([sys.executable, "-c", code], env=os.environ | settings, cwd=ROOT).returncode)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
