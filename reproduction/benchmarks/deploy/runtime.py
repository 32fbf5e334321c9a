"""How large is qpsbgd-runtime, and how soon does it answer for the first time?

The wheel is built and installed into an empty folder, beside links to numpy and safetensors. Fresh processes then
import it, load a packed network 784-512-512-10 and run one sample. They take turns with processes that import numpy
alone, and with others that do the same through torch. Processor time is what counts where the machine is busy.

    python benchmarks/deploy/runtime.py [FILE]   writes results/runtime.json, or FILE; needs a C++ compiler
"""

import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy
import safetensors
from torch import nn

from qpsbgd.deploy import pack
from qpsbgd.nn import BinaryLinear, SignActivation
from qpsbgd_paper.framework.measurements import publish

ROOT, RUNS = Path(__file__).parents[3], 7
FIRST = "import numpy; from qpsbgd_runtime import load_packed; load_packed('net')(numpy.ones((1, 784)))"
TORCH = "import torch; from qpsbgd.deploy import load_packed; load_packed('net')(torch.ones(1, 784).numpy())"


def install(folder):
    """The folder of the installed wheel; and bytes, of the wheel and of all that it needs beside numpy."""
    build = [sys.executable, "-m", "build", "--no-isolation", "--wheel", "--outdir"]
    subprocess.run([*build, folder, ROOT / "packages" / "qpsbgd-runtime"], check=True, capture_output=True)
    (wheel,) = folder.glob("*.whl")
    site = folder / "site"
    pip = [sys.executable, "-m", "pip", "install", "--no-index", "--no-deps", "--no-compile", "--target"]
    subprocess.run([*pip, site, wheel], check=True, capture_output=True)
    needed = bytes_in(site) + bytes_in(Path(safetensors.__file__).parent)
    for package in (numpy, safetensors):
        for path in Path(package.__file__).parent.parent.glob(f"{package.__name__}*"):
            if path.name in (package.__name__, f"{package.__name__}.libs"):
                (site / path.name).symlink_to(path)
    return site, {"wheel": wheel.stat().st_size, "beside numpy": needed}


def bytes_in(folder):
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file() and path.suffix != ".pyc")


def seconds(folder, code, *, site=None):
    """Wall and processor time of a fresh process."""
    options, variables = ([], {}) if site is None else (["-S"], {"PYTHONPATH": str(site)})
    used, begin = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    subprocess.run([sys.executable, *options, "-c", code], cwd=folder, env=os.environ | variables, check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.perf_counter() - begin, after.ru_utime + after.ru_stime - used.ru_utime - used.ru_stime


def main():
    layers = [SignActivation()]
    for n, m in ((784, 512), (512, 512)):
        layers += [BinaryLinear(n, m), nn.BatchNorm1d(m), SignActivation()]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        pack(nn.Sequential(*layers, BinaryLinear(512, 10)), folder / "net")
        site, sizes = install(folder)
        cases = {"nothing": ("pass", site), "numpy alone": ("import numpy", site), "runtime": (FIRST, site)}
        cases["torch and qpsbgd"] = (TORCH, None)
        times = {case: [] for case in cases}
        for _ in range(RUNS + 1):  # the first fills the caches
            for case, (code, where) in cases.items():
                times[case].append(seconds(folder, code, site=where))
    answers = {}
    for case, pairs in times.items():
        wall, cpu = (statistics.median(values) for values in zip(*pairs[1:], strict=True))
        answers[case] = {"wall_s": wall, "cpu_s": cpu}
    publish(__file__, load=os.getloadavg()[0], bytes=sizes, first_answer=answers)
    print(sizes, *answers.items(), sep="\n")


if __name__ == "__main__":
    main()
