"""What do several processes send in a step, and how long does it take? Spins and ridge beside DDP's gradients.

Batches of 100 images, shared out among 1 and 2 processes on this machine (gloo, one thread each). Bytes are counted
where they are handed over: by the optimiser's `Ranks`, and by a hook of DistributedDataParallel. They are means over
20 steps, the cycle in which Q̄ is renewed once. With 4 processes, the bytes show how what is gathered depends on their
number.

    python benchmarks/training/ranks.py            writes benchmarks/results/ranks.json
"""

from qpsbgd_qubo.openmp import wait_passively

wait_passively()  # before torch is loaded

import os
import statistics
import tempfile
import time
from pathlib import Path

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
from torch.multiprocessing import get_context
from torch.nn.parallel import DistributedDataParallel
from training_parts import convolutional, dense

from qpsbgd import QPSBGD, BinaryConnect
from qpsbgd_paper.framework.measurements import publish, shown

BATCH, CYCLE = 100, 20
NETWORKS = {"784-512-512-10": lambda: dense([784, 512, 512, 10]), "cnn": lambda: convolutional(norm=False)}
METHODS = {
    "bc-adam": lambda model: BinaryConnect(model),
    "ridge": lambda model: QPSBGD(model, projection="ridge"),
    "spins": lambda model: QPSBGD(model, projection="spins"),
}
SIZES = (1, 2, 4)


def counting(sent, bucket):
    """DDP's own hook, with its bytes counted."""
    sent["gradients"] = sent.get("gradients", 0) + bucket.buffer().numel() * bucket.buffer().element_size()
    return allreduce_hook(None, bucket)


def measure(rank, size, network, method):
    """Per training step of this rank: bytes, median milliseconds, and mean milliseconds of CPU time."""
    torch.manual_seed(0)
    model = NETWORKS[network]()
    sent, trained = {}, model
    if size > 1:
        trained = DistributedDataParallel(model)
        trained.register_comm_hook(sent, counting)
    optimizer = METHODS[method](model)
    inputs, targets = torch.randn(BATCH, 784), torch.randint(10, (BATCH,))
    own, times, cpu = slice(BATCH * rank // size, BATCH * (rank + 1) // size), [], 0.0
    for step in range(2 * CYCLE):
        if step == CYCLE:
            sent.clear()
            cpu = time.process_time()
            if isinstance(optimizer, QPSBGD):
                optimizer._ranks.sent = 0
        start = time.perf_counter()
        optimizer.zero_grad()
        F.cross_entropy(trained(inputs[own]), targets[own]).backward()
        optimizer.step()
        times.append(1e3 * (time.perf_counter() - start))
    counts = {**sent, "gathered": optimizer._ranks.sent if isinstance(optimizer, QPSBGD) else 0}
    bytes_per_step = {name: count / CYCLE for name, count in counts.items()}
    return bytes_per_step, statistics.median(times[CYCLE:]), 1e3 * (time.process_time() - cpu) / CYCLE


def serve(rank, size, store, pipe):
    torch.set_num_threads(1)
    if size > 1:
        dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=size)
    pipe.send([measure(rank, size, network, method) for network in NETWORKS for method in METHODS])
    if size > 1:
        dist.destroy_process_group()


def started(size):
    """The measurements of every network and method by rank 0 of so many processes."""
    context = get_context("spawn")
    with tempfile.TemporaryDirectory() as folder:
        pipes = [context.Pipe() for _ in range(size)]
        jobs = [(rank, size, Path(folder) / "store", pipes[rank][1]) for rank in range(size)]
        processes = [context.Process(target=serve, args=job) for job in jobs]
        for process in processes:
            process.start()
        found = [here.recv() for here, _ in pipes]
        for process in processes:
            process.join()
    return found[0]


def measured():
    pairs = [(network, method) for network in NETWORKS for method in METHODS]
    for size in SIZES:
        for (network, method), (sent, milliseconds, cpu) in zip(pairs, started(size), strict=True):
            row = {"network": network, "method": method, "ranks": size}
            yield {**row, "bytes per step": sent, "step ms": milliseconds, "cpu ms": cpu}


if __name__ == "__main__":
    settings = {"device": "CPU", "backend": "gloo", "threads per rank": 1, "batch": BATCH, "steps": CYCLE}
    settings["load of the machine before"] = os.getloadavg()[0]
    publish(__file__, settings=settings, results=shown(measured()))
