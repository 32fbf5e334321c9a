"""How small and how fast are deployed networks, and do they give torch's classes on all of MNIST's test images?

Three networks: 784-512-512-10 with binary inputs and activations, the same with real inputs and hardtanh, both trained
for one epoch, and a CNN with binary inputs and activations, trained on 10,000 images. Each is packed, compiled from C
and exported to ONNX; sizes are those of the files, classes are compared image by image.

Times are medians of single calls on one thread; only products of real numbers in packed models use as many as numpy
takes. All programs take turns in one process, so that a slow moment hits all of them; float32 networks have the same
widths, with ReLU. Everything is timed twice: without, and beside one more process that keeps a core busy. The load of
the machine before each is recorded.

    python benchmarks/deploy.py        writes benchmarks/results/deploy.json; needs gcc or clang, MNIST and onnxruntime
"""

from qpsbgd.openmp import wait_passively

wait_passively()  # before torch is loaded

import ctypes
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from contextlib import nullcontext
from pathlib import Path

import numpy as np
import onnxruntime
import torch
import torch.nn.functional as F
from busy_machine import beside_a_busy_process
from torch import nn
from training import mnist

from qpsbgd import QPSBGD, real_optimizer
from qpsbgd.deploy import load_packed, pack, to_c, to_onnx
from qpsbgd.nn import BinaryConv2d, BinaryLinear, SignActivation
from qpsbgd_paper.framework.result_files import environment, write_json

TARGET = Path(__file__).parent / "results" / "deploy.json"
BATCH, CALLS = 100, {1: 2000, 100: 60}


def dense(activation, *, first=()):
    layers = [*first]
    for n, m in ((784, 512), (512, 512)):
        layers += [BinaryLinear(n, m), nn.BatchNorm1d(m), activation()]
    return nn.Sequential(*layers, BinaryLinear(512, 10), nn.BatchNorm1d(10))


def convolutional():
    layers = [nn.Unflatten(1, (1, 28, 28)), SignActivation()]
    for n, m in ((1, 32), (32, 64)):
        layers += [BinaryConv2d(n, m, 3, padding=1), nn.MaxPool2d(2), nn.BatchNorm2d(m), SignActivation()]
    return nn.Sequential(*layers, nn.Flatten(), BinaryLinear(3136, 10), nn.BatchNorm1d(10))


NETWORKS = {
    "784-512-512-10, binary": (lambda: dense(SignActivation, first=[SignActivation()]), 60_000),
    "784-512-512-10, hardtanh": (lambda: dense(nn.Hardtanh), 60_000),
    "CNN, binary": (convolutional, 10_000),
}
"""How to build them, and on how many images to train."""


def trained(build, images):
    """A network after one pass over so many images, in evaluation mode."""
    torch.manual_seed(0)
    inputs, targets, *_ = mnist(False)
    model = build()
    batches = torch.randperm(len(inputs))[:images].split(BATCH)
    optimizer = QPSBGD(model, steps=len(batches))
    real = real_optimizer(model, beside=optimizer, lr=1e-2)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(real, len(batches))
    for rows in batches:
        optimizer.zero_grad()
        real.zero_grad()
        F.cross_entropy(model(inputs[rows]), targets[rows]).backward()
        for part in (optimizer, real, schedule):
            part.step()
    return model.eval()


def compiled(source):
    """The C code as a library: functions of one sample, which return the class and write the outputs."""
    library = source.files[0].parent / "network.so"
    compiler = shutil.which("gcc") or shutil.which("clang")
    flags = ["-std=c99", "-O3", "-march=native", "-shared", "-fPIC"]
    subprocess.run([compiler, *flags, str(source.files[1]), "-o", str(library)], check=True)
    return ctypes.CDLL(str(library))


def session(path):
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    return onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])


def classes_of(run):
    _, _, images, _ = mnist(False)
    return np.concatenate([np.asarray(run(part)).argmax(1) for part in images.numpy().reshape(20, 500, -1)])


def c_classes(library, integer):
    _, _, images, _ = mnist(False)
    values = np.where(images.numpy() >= 0, 1, -1).astype(np.int8) if integer else images.numpy()
    return np.array([library.network_classify(ctypes.c_void_p(row.ctypes.data)) for row in values])


def measured(name, folder):
    """Sizes, accuracy and agreement of a network."""
    model = trained(*NETWORKS[name])
    folder.mkdir()
    pack(model, folder / "net.safetensors")
    source = to_c(model, folder / "c")
    for weights in ("bits", "float32"):
        to_onnx(model, folder / f"{weights}.onnx", weights=weights)
    torch.save(model.state_dict(), folder / "model.pt")
    with torch.inference_mode():
        theirs = classes_of(lambda part: model(torch.from_numpy(part)))
    graph = session(folder / "bits.onnx")
    found = {
        "packed": classes_of(load_packed(folder / "net.safetensors")),
        "C": c_classes(compiled(source), source.integer),
        "ONNX": classes_of(lambda part: graph.run(None, {"input": part})[0]),
    }
    parameters = sum(p.numel() for p in model.parameters())
    return {
        "network": name,
        "trained_on": NETWORKS[name][1],
        "test_accuracy": float(np.mean(theirs == mnist(False)[3].numpy())),
        "images": len(theirs),
        "other_classes": {target: int((theirs != ours).sum()) for target, ours in found.items()},
        "bytes": {
            "float32 parameters": 4 * parameters,
            "packed": (folder / "net.safetensors").stat().st_size,
            "ONNX, bits": (folder / "bits.onnx").stat().st_size,
            "ONNX, float32": (folder / "float32.onnx").stat().st_size,
            "C, flash": source.flash_bytes,
            "C, RAM": source.ram_bytes,
        },
        "C without floating point": source.integer,
    }


def programs(folder, batch):
    """What is timed: functions without arguments, by name."""
    _, _, images, _ = mnist(False)
    x = images[:batch]
    rows, signs = x.numpy(), np.where(x.numpy() >= 0, 1, -1).astype(np.int8)
    real = nn.Sequential(nn.Linear(784, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 10)).eval()
    to_onnx(real, folder / "real.onnx")
    graph = session(folder / "real.onnx")
    found = {
        "torch, float32": lambda: real(x),
        "onnxruntime, float32": lambda: graph.run(None, {"input": rows}),
    }
    for name in list(NETWORKS)[:2]:
        packed = load_packed(folder / name / "net.safetensors")
        bits = session(folder / name / "bits.onnx")
        found[f"packed, {name.split(', ')[1]}"] = lambda packed=packed: packed(rows)
        found[f"onnxruntime from bits, {name.split(', ')[1]}"] = lambda bits=bits: bits.run(None, {"input": rows})
    for word_bits in (32, 64):
        packed = load_packed(folder / next(iter(NETWORKS)) / "net.safetensors")
        library = compiled(to_c(packed, folder / f"c{word_bits}", word_bits=word_bits))
        classify = library.network_classify
        classify.argtypes = [ctypes.c_void_p]
        found[f"C, binary, {word_bits}-bit words"] = lambda classify=classify: [
            classify(signs.ctypes.data + 784 * row) for row in range(batch)
        ]
    return found


def times(found, calls):
    """Median microseconds of a call, all programs taking turns."""
    spent = {name: [] for name in found}
    with torch.inference_mode():
        for _ in range(calls + calls // 10):
            for name, run in found.items():
                start = time.perf_counter()
                run()
                spent[name].append(1e6 * (time.perf_counter() - start))
    return {name: statistics.median(values[calls // 10 :]) for name, values in spent.items()}


def main():
    torch.set_num_threads(2)
    networks, timings = [], []
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        for name in NETWORKS:
            networks.append(measured(name, folder / name))
            print(networks[-1], flush=True)
        torch.set_num_threads(1)
        for busy in (False, True):
            load = os.getloadavg()[0]
            with beside_a_busy_process() if busy else nullcontext():
                for batch, calls in CALLS.items():
                    found = times(programs(folder, batch), calls)
                    ours = found["packed, binary"]
                    ratios = {name: found[name] / ours for name in ("torch, float32", "onnxruntime, float32")}
                    row = {"busy": busy, "batch": batch, "microseconds": found, "times_faster": ratios}
                    timings.append(row | {"load_before": load, "calls": calls})
                    print(timings[-1], flush=True)
    settings = {"threads": 1, "training batch": BATCH, "cores": os.cpu_count(), "C flags": "-O3 -march=native"}
    target = Path(sys.argv[1]) if len(sys.argv) > 1 else TARGET
    write_json(target, {"made with": environment(), "settings": settings, "networks": networks, "times": timings})


if __name__ == "__main__":
    main()
