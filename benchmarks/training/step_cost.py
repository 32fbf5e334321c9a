"""What does a whole training step cost, beside BinaryConnect with Adam? Forward, backward and step, on real images.

Networks 64-128-10 (batch 32), 784-256-256-10, 784-512-512-10 and a CNN (batch 100). Methods take turns step by step in
one process, so that a slow moment hits all of them; medians are compared. On a CPU everything is measured twice: on an
otherwise idle machine, and beside one process that keeps a core busy.

    python benchmarks/training/step_cost.py        writes benchmarks/results/step_cost_cpu.json, or _cuda.json
"""

from qpsbgd_qubo.openmp import wait_passively

wait_passively()  # before torch is loaded

import statistics
import sys
import time
from contextlib import nullcontext
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1]))  # for tools/

import torch
import torch.nn.functional as F
from tools.busy_machine import beside_a_busy_process
from training import convolutional, dense, digits, mnist

from qpsbgd import QPSBGD, BinaryConnect
from qpsbgd.projections import Spins
from qpsbgd_paper.framework.result_files import environment, write_json

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
METHODS = {
    "bc-adam": lambda model: BinaryConnect(model),
    "ridge": lambda model: QPSBGD(model, projection="ridge"),
    "spins": lambda model: QPSBGD(model, projection="spins"),
    "spins, two vectors": lambda model: QPSBGD(model, projection=Spins(bits=2)),
    "spins, from sign": lambda model: QPSBGD(model, solver="descent"),
    "printed": lambda model: QPSBGD(model, projection="printed"),
}
NETWORKS = {
    "64-128-10": (lambda: dense([64, 128, 10]), digits, 32, 300),
    "784-256-256-10": (lambda: dense([784, 256, 256, 10]), mnist, 100, 80),
    "784-512-512-10": (lambda: dense([784, 512, 512, 10]), mnist, 100, 60),
    "cnn": (lambda: convolutional(norm=False), mnist, 100, 60),
}


def synchronize():
    if DEVICE == "cuda":
        torch.cuda.synchronize()


def medians(build, data, batch, steps):
    """Milliseconds of a training step per method; the first fifth, which compiles, does not count."""
    inputs, targets, *_ = data(False)
    inputs, targets = inputs.to(DEVICE), targets.to(DEVICE)
    pairs = {}
    for name, make in METHODS.items():
        torch.manual_seed(0)
        model = build().to(DEVICE)
        pairs[name] = model, make(model)
    times = {name: [] for name in pairs}
    order = torch.Generator().manual_seed(0)
    for _ in range(steps):
        rows = torch.randint(len(inputs), (batch,), generator=order).to(DEVICE)
        for name, (model, optimizer) in pairs.items():
            synchronize()
            start = time.perf_counter()
            optimizer.zero_grad()
            F.cross_entropy(model(inputs[rows]), targets[rows]).backward()
            optimizer.step()
            synchronize()
            times[name].append(1e3 * (time.perf_counter() - start))
    return {name: statistics.median(values[steps // 5 :]) for name, values in times.items()}


def main():
    torch.set_num_threads(2)
    results = []
    for busy in (False, True) if DEVICE == "cpu" else (False,):
        with beside_a_busy_process() if busy else nullcontext():
            for network, (build, data, batch, steps) in NETWORKS.items():
                if DEVICE == "cuda" and data is digits:
                    continue  # too small for a GPU
                found = medians(build, data, batch, steps)
                ratios = {f"{name}, times bc-adam": found[name] / found["bc-adam"] for name in found}
                results.append({"network": network, "busy": busy, "milliseconds": found, **ratios})
                print(
                    network,
                    "busy" if busy else "idle",
                    {k: round(v, 2) for k, v in (found | ratios).items()},
                    flush=True,
                )
    settings = {
        "device": torch.cuda.get_device_name() if DEVICE == "cuda" else "CPU",
        "threads": torch.get_num_threads(),
    }
    target = (
        Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parents[1] / "results" / f"step_cost_{DEVICE}.json"
    )
    write_json(target, {"made with": environment(), "settings": settings, "results": results})


if __name__ == "__main__":
    main()
