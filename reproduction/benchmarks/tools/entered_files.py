"""Through how many files do a step, a solution, a binarisation and a C program go? The table of docs/design.md.

    python reproduction/benchmarks/tools/entered_files.py            [--list: also the files]

Counted are files of the libraries in which a function is called; a step is four ridge steps from `backward` to the
changed weights, with and without a renewal, in one process on a CPU.
"""

import gc
import json
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import torch
from torch import nn

import qpsbgd_qubo
from qpsbgd import QPSBGD, binarize
from qpsbgd.deploy import to_c
from qpsbgd.nn import BinaryLinear, SignActivation
from qpsbgd.solvers import make_solver

PACKAGES = ("qpsbgd", "qpsbgd_qubo", "qpsbgd_runtime", "qpsbgd_files")


def entered(work: Callable[[], Any]) -> list[str]:
    """The files in which functions of the libraries are called."""
    files = set[str]()

    def note(frame: FrameType, event: str, _: object) -> None:
        path = Path(frame.f_code.co_filename)
        package = next((name for name in PACKAGES if name in path.parts), None)
        if event == "call" and package is not None and frame.f_code.co_name != "<module>":
            files.add("/".join(path.with_suffix("").parts[len(path.parts) - path.parts[::-1].index(package) - 1 :]))

    gc.collect()  # what earlier work left behind may end within files of its own
    sys.setprofile(note)
    try:
        work()
    finally:
        sys.setprofile(None)
    return sorted(files)


def all_works(folder: Path) -> dict[str, Callable[[], Any]]:
    """What is traced, by name; each has run before, so that nothing is loaded meanwhile."""
    model = nn.Sequential(BinaryLinear(8, 16), nn.BatchNorm1d(16), nn.ReLU(), BinaryLinear(16, 4))
    optimizer = QPSBGD(model, projection="ridge", real=False)
    losses = iter([model(torch.randn(32, 8)).square().mean() for _ in range(8)])

    def steps() -> None:
        for _ in range(4):
            optimizer.zero_grad()
            next(losses).backward()
            optimizer.step()

    couplings = {(i, j): float(np.cos(i * j + j)) for i in range(12) for j in range(i)}
    family = qpsbgd_qubo.QuboFamily(torch.eye(12) + 0.1, torch.randn(12, 3), torch.zeros(3))
    descent = make_solver("descent")
    real = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 4))
    batches = [torch.randn(32, 8) for _ in range(4)]
    signs = nn.Sequential(BinaryLinear(8, 16), nn.BatchNorm1d(16), SignActivation(), BinaryLinear(16, 4)).eval()
    return {
        "a ridge step": steps,
        'make_solver("descent").solve(family)': lambda: descent.solve(family),
        "qpsbgd_qubo.solve(Q)": lambda: qpsbgd_qubo.solve(couplings),
        "binarize(model, batches)": lambda: binarize(real, batches),
        "to_c(model, folder)": lambda: to_c(signs, folder / "c", input_shape=(8,)),
    }


if __name__ == "__main__":
    torch.manual_seed(0)
    with tempfile.TemporaryDirectory() as folder:
        for name, work in all_works(Path(folder)).items():
            work()
            files = entered(work)
            print(f"{name:<40}{len(files)}")
            if "--list" in sys.argv[1:]:
                print(json.dumps(files, indent=1))
