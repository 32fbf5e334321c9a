"""How large a network can be trained? Time per step and memory of networks with more than ten million binary weights.

BinaryConnect's network for 32 × 32 images (2×128C3-MP2-2×256C3-MP2-2×512C3-MP2-2×1024FC-10) and a dense one
(784-2500-2500-2500-10), batch 100, random images; widths cut by 2 and 4 show how time and memory grow.

    python benchmarks/training/size.py [FILE]        needs CUDA; writes benchmarks/results/size.json, or FILE
"""

import gc
import statistics
import time

import torch
import torch.nn.functional as F
import training_parts
from torch import nn

from qpsbgd import QPSBGD, BinaryConnect, real_optimizer
from qpsbgd.nn import BinaryConv2d, BinaryLayer
from qpsbgd.projections import Ridge
from qpsbgd_paper.framework.measurements import publish, shown

STEPS, BATCH = 100, 100


def convolutional(share):
    layers, channels = [], 3
    for width in (128, 256, 512):
        for pool in ([], [nn.MaxPool2d(2)]):
            layers += [BinaryConv2d(channels, width // share, 3, padding=1), *pool]
            layers += [nn.BatchNorm2d(width // share), nn.Hardtanh()]
            channels = width // share
    linear = training_parts.dense([16 * channels, *[1024 // share] * 2, 10], norm=True)
    return nn.Sequential(*layers, nn.Flatten(), *linear), (3, 32, 32)


def dense(share):
    return training_parts.dense([784, *[2500 // share] * 3, 10], norm=True), (784,)


METHODS = {
    "bc-adam": lambda model: BinaryConnect(model),
    "ridge": lambda model: QPSBGD(model, projection="ridge"),
    "ridge, no blocks": lambda model: QPSBGD(model, projection=Ridge(block=None)),
    "spins": lambda model: QPSBGD(model, projection="spins"),
}


def measure(build, share, make):
    torch.manual_seed(0)
    model, shape = build(share)
    model = model.cuda()
    weights = sum(m.weight.numel() for m in model.modules() if isinstance(m, BinaryLayer))
    binary = make(model)
    real = real_optimizer(model, binary, lr=1e-3)
    inputs, targets = torch.randn(BATCH, *shape, device="cuda"), torch.randint(10, (BATCH,), device="cuda")
    gc.collect()  # what is left of the network before
    torch.cuda.reset_peak_memory_stats()
    times, losses = [], []
    for _ in range(STEPS):
        torch.cuda.synchronize()
        start = time.perf_counter()
        for optimizer in (binary, real):
            optimizer.zero_grad()
        loss = F.cross_entropy(model(inputs), targets)
        loss.backward()
        for optimizer in (binary, real):
            optimizer.step()
        torch.cuda.synchronize()
        times.append(1e3 * (time.perf_counter() - start))
        losses.append(loss.item())
    kept = sum(v.numel() * v.element_size() for s in binary.state.values() for v in s.values() if torch.is_tensor(v))
    return {
        "binary weights": weights,
        "median step ms": statistics.median(times[STEPS // 5 :]),
        "mean step ms": statistics.mean(times[STEPS // 5 :]),
        "peak memory MB": torch.cuda.max_memory_allocated() / 2**20,
        "state of the optimiser MB": kept / 2**20,
        "state per weight": kept / 4 / weights,
        "first and last loss": [losses[0], losses[-1]],
    }


def measured():
    for network, build in (("convolutional", convolutional), ("dense", dense)):
        for share in (4, 2, 1):
            for method, make in METHODS.items():
                if method != "spins" or share > 1:
                    yield {"network": network, "width": f"1/{share}", "method": method, **measure(build, share, make)}
                    torch.cuda.empty_cache()


if __name__ == "__main__":
    publish(__file__, device=torch.cuda.get_device_name(), results=shown(measured()))
