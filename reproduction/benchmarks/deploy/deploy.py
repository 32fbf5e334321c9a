"""How small and how fast are deployed networks, and do they give torch's classes on all of MNIST's test images?

Dense networks 784-512-512-10, CNNs and a network of depthwise and pointwise convolutions as in MobileNet: with binary
inputs and activations, with inputs and activations of 8 bits, or with real inputs and ReLU. The dense ones are trained
for one epoch, the others on 10,000 images. Each is packed, compiled from C and exported to ONNX; sizes are those of the
files, classes are compared image by image.

Times are those of single calls on one thread: packed, C at -O3, onnxruntime with the network's own weights in float32
and, for networks that are not binary, quantised to 8 bits (static, calibrated on 200 images), and torch. All programs
take turns in one process, and the least processor time of each is recorded, with the load of the machine before: what
others do on it does not count. With --resnets, those of ResNet-20 and -32 with ReLU, as `binarize` makes them of new
ones, beside the float network in onnxruntime.

    python benchmarks/deploy/deploy.py [FILE]   writes results/deploy_MACHINE.json, or FILE; needs gcc or
                                                clang, MNIST and onnxruntime
    python benchmarks/deploy/deploy.py --resnets [FILE]    writes results/deploy_resnets.json, or FILE
"""

from qpsbgd.openmp import wait_passively

wait_passively()  # before torch is loaded

import ctypes
import itertools
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import time
from functools import partial
from pathlib import Path

import numpy as np
import onnxruntime
import torch
from onnxruntime.quantization import CalibrationDataReader, quantize_static
from torch import nn

from benchmarks.training.training_parts import dense, mnist
from qpsbgd import QPSBGD, binarize
from qpsbgd.deploy import load_packed, pack, to_c, to_onnx
from qpsbgd.nn import BinaryConv2d, BinaryLinear, QuantActivation, SignActivation
from qpsbgd_paper.framework.measurements import print_rows, publish
from qpsbgd_paper.framework.networks import resnet
from qpsbgd_paper.framework.training import fit_classifier
from qpsbgd_runtime.unit_operations import Quantize

BATCH, CALLS = 100, {1: 500, 100: 15}
C_FLAGS = ("-std=c99", "-O3")


def convolutional(activation, *, first=()):
    layers = [nn.Unflatten(1, (1, 28, 28)), *first]
    for n, m in ((1, 32), (32, 64)):
        layers += [BinaryConv2d(n, m, 3, padding=1), nn.MaxPool2d(2), nn.BatchNorm2d(m), activation()]
    return nn.Sequential(*layers, nn.Flatten(), BinaryLinear(3136, 10), nn.BatchNorm1d(10))


def separable():
    """Depthwise and pointwise convolutions by turns, behind a real convolution and before a real layer."""
    layers = [nn.Unflatten(1, (1, 28, 28)), nn.Conv2d(1, 16, 3, stride=2, padding=1), nn.BatchNorm2d(16), nn.ReLU6()]
    for n, m, stride in ((16, 32, 1), (32, 64, 2), (64, 64, 1), (64, 128, 2)):
        layers += [BinaryConv2d(n, n, 3, stride=stride, padding=1, groups=n), nn.BatchNorm2d(n), nn.ReLU6()]
        layers += [BinaryConv2d(n, m, 1), nn.BatchNorm2d(m), nn.ReLU6()]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(128, 10))


DENSE = partial(dense, [784, 512, 512, 10], norm=True)
NETWORKS = {
    "784-512-512-10, binary": (lambda: nn.Sequential(SignActivation(), *DENSE(activation=SignActivation)), 60_000),
    "784-512-512-10, ReLU": (partial(DENSE, activation=nn.ReLU), 60_000),
    "CNN, binary": (lambda: convolutional(SignActivation, first=[SignActivation()]), 10_000),
    "CNN, 8 bits": (lambda: convolutional(QuantActivation, first=[QuantActivation(signed=True)]), 10_000),
    "CNN, ReLU": (partial(convolutional, nn.ReLU), 10_000),
    "MobileNet, ReLU6": (separable, 10_000),
}
"""How to build them, and on how many images to train."""


def train(build, images):
    """A network after one pass over so many images, in evaluation mode."""
    torch.manual_seed(0)
    inputs, targets, *_ = mnist(False)
    model, steps = build(), images // BATCH
    optimizer = QPSBGD(model, steps=steps, real={"lr": 1e-2})
    fit_classifier(model, (inputs, targets), batch=BATCH, steps=steps, optimizers=[optimizer])
    return model.eval()


def session(path):
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    return onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])


def classes_of(run):
    _, _, images, _ = mnist(False)
    return np.concatenate([np.asarray(run(part)).argmax(1) for part in images.numpy().reshape(20, 500, -1)])


def c_inputs(rows, network, source):
    """Images as the C code takes them: real numbers, their signs, or integers that count a step."""
    if not source.integer:
        return rows
    first = next((operation for operation in network.operations[:2] if isinstance(operation, Quantize)), None)
    if first is None:
        return np.where(rows >= 0, 1, -1).astype(np.int8)
    steps = first.steps
    return np.rint(rows / np.float32(steps.scale)).clip(steps.low, steps.high).astype(steps.kind)


def c_function(source):
    """The class of a sample that lies at an address, by the C code as a compiled library."""
    library = source.files[0].parent / "network.so"
    compiler = shutil.which("gcc") or shutil.which("clang")
    subprocess.run([compiler, *C_FLAGS, "-shared", "-fPIC", str(source.files[1]), "-o", str(library)], check=True)
    run = ctypes.CDLL(str(library)).network_classify
    run.argtypes = [ctypes.c_void_p]
    return run


def export(model, folder):
    """The packed model and the C code; all files of a network go into the folder."""
    folder.mkdir()
    for weights in ("bits", "float32"):
        to_onnx(model, folder / f"{weights}.onnx", weights=weights, input_shape=(784,))
    torch.save(model, folder / "model.pt")
    return pack(model, folder / "net.safetensors"), to_c(model, folder / "c", input_shape=(784,))


def measure(name, folder):
    """Sizes, accuracy and agreement of a network."""
    model = train(*NETWORKS[name])
    packed, source = export(model, folder)
    _, _, images, labels = mnist(False)
    with torch.inference_mode():
        theirs = classes_of(lambda part: model(torch.from_numpy(part)))
    graph, run = session(folder / "bits.onnx"), c_function(source)
    classes = {
        "packed": classes_of(load_packed(folder / "net.safetensors")),
        "C": np.array([run(row.ctypes.data) for row in c_inputs(images.numpy(), packed, source)]),
        "ONNX": classes_of(lambda part: graph.run(None, {"input": part})[0]),
    }
    files = {"packed": "net.safetensors", "ONNX, bits": "bits.onnx", "ONNX, float32": "float32.onnx"}
    return {
        "network": name,
        "trained_on": NETWORKS[name][1],
        "test_accuracy": float(np.mean(theirs == labels.numpy())),
        "images": len(theirs),
        "other_classes": {target: int((theirs != ours).sum()) for target, ours in classes.items()},
        "bytes": {
            "float32 parameters": 4 * sum(p.numel() for p in model.parameters()),
            **{what: (folder / file).stat().st_size for what, file in files.items()},
            "C, flash": source.flash_bytes,
            "C, RAM": source.ram_bytes,
        },
        "C without floating point": source.integer,
    }


class _Calibration(CalibrationDataReader):
    def __init__(self):
        images, *_ = mnist(False)
        self._rows = iter(images[:200].numpy().reshape(200, 1, -1))

    def get_next(self):
        row = next(self._rows, None)
        return None if row is None else {"input": row}


def programs(name, folder, batch):
    """What is timed of a network: functions without arguments, by name."""
    _, _, images, _ = mnist(False)
    x = images[:batch]
    rows = x.numpy()
    packed, graph = load_packed(folder / "net.safetensors"), session(folder / "float32.onnx")
    source = to_c(packed, folder / "c64", word_bits=64, input_shape=(784,))
    run, values = c_function(source), c_inputs(rows, packed, source)
    calls = {
        "packed": lambda: packed(rows),
        "C": lambda: [run(values.ctypes.data + row * values.strides[0]) for row in range(batch)],
        "onnxruntime, float32": lambda: graph.run(None, {"input": rows}),
    }
    if name not in ("784-512-512-10, binary", "CNN, binary"):
        model = torch.load(folder / "model.pt", weights_only=False)
        if not (folder / "int8.onnx").exists():
            quantize_static(folder / "float32.onnx", folder / "int8.onnx", _Calibration())
        small = session(folder / "int8.onnx")
        calls["onnxruntime, int8"] = lambda: small.run(None, {"input": rows})
        calls["torch"] = lambda: model(x)
    return calls


def times(calls_of, calls):
    """The least microseconds of a call, all programs taking turns."""
    spent = {name: [] for name in calls_of}
    with torch.inference_mode():
        for _ in range(calls + 2):
            for name, run in calls_of.items():
                start = time.thread_time()
                run()
                spent[name].append(1e6 * (time.thread_time() - start))
    return {name: {"least": min(all_[2:])} for name, all_ in spent.items()}


def time_rows(folder):
    """Rows of times of all networks and batches."""
    for batch, calls in CALLS.items():
        for name in NETWORKS:
            load = os.getloadavg()[0]
            spent = times(programs(name, folder / name, batch), calls)
            yield {"batch": batch, "network": name, "microseconds": spent, "load_before": load, "calls": calls}


def resnet_times(folder):
    """Times of float, packed and ONNX's bits, for both ResNets, of one and two bits."""
    for depth, bits in itertools.product((20, 32), (1, 2)):
        torch.manual_seed(0)
        model, files = resnet(depth).eval(), [str(folder / f"{depth}-{bits}.{end}") for end in ("float", "onnx", "net")]
        for norm in (module for module in model.modules() if isinstance(module, nn.BatchNorm2d)):
            for values in (norm.weight, norm.running_var):
                nn.init.uniform_(values, 0.5, 1.5)  # as of trained networks, not all alike
        made, _ = binarize(model, [torch.randn(32, 3, 32, 32)], bits=bits, solver="rounding")
        torch.onnx.export(
            model, torch.randn(2, 3, 32, 32), files[0], dynamo=False, input_names=["input"], dynamic_axes={"input": [0]}
        )
        to_onnx(made, files[1], input_shape=(3, 32, 32))
        pack(made, files[2], input_shape=(3, 32, 32))
        real, graph, packed = session(files[0]), session(files[1]), load_packed(files[2])
        for batch, calls in ((1, 40), (100, 5)):
            rows = torch.randn(batch, 3, 32, 32).numpy()
            found = {
                "onnxruntime, float network": partial(real.run, None, {"input": rows}),
                "onnxruntime, bits": partial(graph.run, None, {"input": rows}),
                "packed": partial(packed, rows),
            }
            yield {"depth": depth, "bits": bits, "batch": batch, "microseconds": times(found, calls)}


def main():
    if "--resnets" in sys.argv:
        sys.argv.remove("--resnets")
        torch.set_num_threads(1)
        with tempfile.TemporaryDirectory() as temporary:
            publish(Path(__file__).with_stem("deploy_resnets"), rows=print_rows(resnet_times(Path(temporary))))
        return
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        torch.set_num_threads(2)
        networks = print_rows(measure(name, folder / name) for name in NETWORKS)
        torch.set_num_threads(1)
        timings = print_rows(time_rows(folder))
    settings = {"clock": "processor time", "threads": 1, "training batch": BATCH}
    settings |= {"cores": os.cpu_count(), "C flags": " ".join(C_FLAGS)}
    file = Path(__file__).with_stem(f"deploy_{platform.machine()}")
    publish(file, settings=settings, networks=networks, times=timings)


if __name__ == "__main__":
    main()
