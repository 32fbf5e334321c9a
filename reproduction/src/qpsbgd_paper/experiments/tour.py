"""The demo's tour: one network from training to one bit per weight, in numbers and pictures."""

import ctypes
import itertools
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from qpsbgd import QPSBGD
from qpsbgd.deploy import pack, to_c
from qpsbgd.nn import BinaryLinear, sign
from qpsbgd.qubo import QuboFamily
from qpsbgd.solvers import make_solver
from qpsbgd_paper.experiments.digits import split_digits
from qpsbgd_paper.framework.experiment import Job, Study
from qpsbgd_paper.framework.measurements import median_seconds
from qpsbgd_paper.framework.runs import Result
from qpsbgd_paper.framework.training import accuracy, fit_classifier

SHOWN_DIGITS = 5  # new digits that are shown with the network's answers: the first ones

SHOWN_UNITS = 32  # hidden units whose weights are shown, in rows of 8

CALLS = 400  # single calls of which a time is the median: about 0.1 s per program


def look(*, hidden: int, epochs: int, seed: int) -> Result:
    """Train a network and record everything that is shown of it."""
    (inputs, targets), (held, held_targets) = split_digits("test")
    torch.manual_seed(seed)
    first, last = BinaryLinear(64, hidden), BinaryLinear(hidden, 10)
    model = nn.Sequential(first, nn.ReLU(), last)
    steps = epochs * (len(inputs) // 32)
    optimizer = QPSBGD(model, projection="spins", steps=steps)
    begun = time.perf_counter()
    how: dict[str, Any] = {"optimizers": [optimizer], "measure": lambda: one_neuron(first, optimizer)}
    how["every"] = -(-steps // 4)  # the first time where the network has begun to learn, and still learns
    neurons = fit_classifier(model, (inputs, targets), batch=32, steps=steps, **how)
    seconds = time.perf_counter() - begun
    model.eval()
    with torch.inference_mode():
        answers = model(held).argmax(1)
        weights = first.binary_weight.reshape(-1, 8, 8)
    floats = float_network([64, hidden, 10], epochs=epochs)
    return {
        "training_seconds": seconds,
        "accuracy": float((answers == held_targets).float().mean()),
        "float_accuracy": accuracy(floats(held), held_targets),
        "digits": [
            {"pixels": (pixels / 2 + 0.5).reshape(8, 8).tolist(), "answer": int(answer), "target": int(target)}
            for pixels, answer, target in zip(held[:SHOWN_DIGITS], answers, held_targets, strict=False)
        ],
        "weights": weights[:SHOWN_UNITS].int().tolist(),
        "neuron": neurons[0],
        "use": in_use(model, floats, held),
    }


def one_neuron(layer: BinaryLinear, optimizer: QPSBGD) -> dict[str, Any]:
    """The QUBO of the hidden unit with the largest gradient, and what two projections answer."""
    state = optimizer.state[layer.weight]
    gram, gradient = state["gram"].reshape(layer.in_features, -1).double(), state["gradient"].double()
    matrix = gram / gram.diagonal().mean() + float(state["penalty"]) * torch.eye(len(gram), dtype=torch.float64)
    pull = gradient[gradient.norm(dim=1).argmax()]
    ridge = torch.linalg.solve(matrix, pull)
    size = ridge.square().mean().sqrt()
    family = QuboFamily(matrix, (-2 * pull / size)[:, None], torch.zeros(1, dtype=torch.float64))
    answer = make_solver("auto").solve(family).spins[:, 0]
    signs = sign(pull).to(answer)
    energies = family.energies(torch.stack([signs, answer])[..., None])
    correlation = gram / torch.outer(gram.diagonal(), gram.diagonal()).sqrt().clamp_min(1e-12)
    return {
        "couplings": correlation.tolist(),
        "gradient": _image(pull),
        "ridge": _image(ridge),
        "signs": _image(signs),
        "answer": _image(answer),
        "flipped": int((answer != signs).sum()),
        "energies": energies.flatten().tolist(),
    }


def _image(values: Tensor) -> list[list[float]]:
    return (values / values.abs().max().clamp_min(1e-30)).reshape(8, 8).tolist()


def in_use(model: nn.Module, floats: nn.Module, inputs: Tensor) -> list[dict[str, Any]]:
    """Bytes and microseconds per digit of a float network and of the binary one; None where there is no C compiler."""
    sample = inputs[:1].contiguous()
    rows = sample.numpy()
    parameters = 4 * sum(p.numel() for p in floats.parameters())
    with tempfile.TemporaryDirectory() as name, torch.inference_mode():
        folder = Path(name)
        packed = pack(model, folder / "net.safetensors")
        source = to_c(packed, folder / "c", input_shape=(64,))
        run = compile_library(source.files, folder / "network.so")
        forms: list[tuple[str, int, Callable[[], object] | None]] = [
            ("float32, PyTorch", parameters, partial(floats, sample)),
            ("one bit per weight, packed file", (folder / "net.safetensors").stat().st_size, partial(packed, rows)),
            ("one bit per weight, C", source.flash_bytes, None if run is None else partial(run, rows.ctypes.data)),
        ]
        return [
            {"form": form, "bytes": size, "microseconds": call and 1e6 * median_seconds(call, CALLS)[0]}
            for form, size, call in forms
        ]


def compile_library(files: Sequence[Path], library: Path) -> Callable[[int], Any] | None:
    """The network's C function that classifies a sample; None where there is no compiler."""
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if compiler is None:
        return None
    sources = [str(path) for path in files if path.suffix == ".c" and not path.stem.endswith("_main")]
    subprocess.run([compiler, "-std=c99", "-O2", "-shared", "-fPIC", *sources, "-o", str(library), "-lm"], check=True)
    classify = ctypes.CDLL(str(library)).network_classify
    return lambda address: classify(ctypes.c_void_p(address))


def float_network(widths: Sequence[int], *, epochs: int) -> nn.Sequential:
    """A float network of these widths, trained by Adam."""
    data, _ = split_digits("test")
    torch.manual_seed(0)
    layers = [layer for sizes in itertools.pairwise(widths) for layer in (nn.Linear(*sizes), nn.ReLU())]
    model = nn.Sequential(*layers[:-1])
    adam, steps = torch.optim.Adam(model.parameters(), lr=3e-3), epochs * (len(data[0]) // 32)
    fit_classifier(model, data, batch=32, steps=steps, optimizers=[adam])
    return model.eval()


def _digits_figure(digits: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    def words(digit: Mapping[str, Any]) -> str:
        wrong = "" if digit["answer"] == digit["target"] else f", is {digit['target']}"
        return f"answer: {digit['answer']}{wrong}"

    title = "New digits, and the network's answers"
    panels = [{"title": words(digit), "values": digit["pixels"]} for digit in digits]
    return {"name": "answers", "title": title, "kind": "images", "columns": 5, "height": 1.7, "panels": panels}


def _weights_figure(result: Mapping[str, Any]) -> dict[str, Any]:
    units = np.array(result["weights"], dtype=float)
    columns = 8
    rows = -(-len(units) // columns)
    tiled = np.full((9 * rows - 1, 9 * columns - 1), np.nan)
    for number, unit in enumerate(units):
        top, left = 9 * (number // columns), 9 * (number % columns)
        tiled[top : top + 8, left : left + 8] = unit
    caption = (
        f"The first layer's weights of {len(units)} hidden units, one square of 8 × 8 pixels each: dark +1, light −1. "
        "Each is stored in one bit."
    )
    text = {"name": "weights", "title": "All it has learned: weights +1 and −1", "caption": caption}
    values = [[None if v != v else v for v in row] for row in tiled.tolist()]
    panels = [{"title": "", "values": values}]
    return {**text, "kind": "images", "height": 7.2 * rows / columns, "panels": panels}


def _neuron_figure(neuron: Mapping[str, Any]) -> dict[str, Any]:
    before, after = neuron["energies"]
    lowered = f"{before:.1f} to {after:.1f}".replace("-", "\u2212")
    differs = (np.array(neuron["answer"]) != np.array(neuron["signs"])) * np.array(neuron["answer"])
    panels = {
        "correlated pixels (Q)": neuron["couplings"],
        "gradient": neuron["gradient"],
        "over real numbers: ridge": neuron["ridge"],
        "signs of the gradient": neuron["signs"],
        "over ±1: the QUBO's answer": neuron["answer"],
        "where the two differ": differs.tolist(),
    }
    caption = (
        "What the projection does for one hidden unit in one step. The inputs, 8 × 8 pixels, are correlated "
        "(Q, 64 × 64), so the gradient counts the same evidence many times. The projection finds the change "
        "of weights that best explains the output's gradient: over real numbers by a linear system, over ±1 by a QUBO. "
        f"Its answer differs from the gradient's signs in {neuron['flipped']} of 64 places and lowers the energy from "
        f"{lowered}. Each picture is scaled to its largest entry."
    )
    text = {"name": "neuron", "title": "One neuron's QUBO and its answer", "caption": caption}
    look = {"kind": "matrices", "limits": [-1, 1], "columns": 3}
    return {**text, **look, "panels": [{"title": title, "values": values} for title, values in panels.items()]}


def _use_table(uses: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    def words(microseconds: float | None) -> str:
        return "no C compiler here" if microseconds is None else f"{microseconds:.1f}"

    return {
        "title": "The trained network in use",
        "head": ["", "bytes", "µs per digit"],
        "body": [[use["form"], f"{use['bytes']:,}", words(use["microseconds"])] for use in uses],
    }


@dataclass(frozen=True)
class Tour(Study):
    """64 → 128 → 10 on scikit-learn's digits, trained, looked at and exported."""

    name = "tour"
    title = "One network, from training to one bit per weight"
    about = (
        "A network 64-128-10 with weights ±1, trained on 1,437 handwritten digits with the defaults of QP-SBGD "
        "(spins), and tested on 360 others."
    )
    paper = ""
    work = staticmethod(look)
    small = {"hidden": 16, "epochs": 1}
    seeds: int = 1
    hidden: int = 128
    epochs: int = 10

    def jobs(self) -> Sequence[Job]:
        return [{"hidden": self.hidden, "epochs": self.epochs, "seed": 0}]

    def presentation(self, results: Sequence[Result]) -> dict[str, Any]:
        (result,) = results
        before, *_, after = result["use"]
        ours, floats = (f"{100 * result[key]:.1f}\u00a0%" for key in ("accuracy", "float_accuracy"))
        tiles = [
            {"value": ours, "note": f"of 360 new digits correct with weights ±1; {floats} with float32 weights."},
            {
                "value": f"{before['bytes']:,} → {after['bytes']:,} bytes",
                "note": "From float32 to one bit per weight in C.",
            },
        ]
        if after["microseconds"] is not None:
            value = f"{before['microseconds']:.1f} → {after['microseconds']:.1f} µs"
            tiles.append({"value": value, "note": "Time per answer, from PyTorch with float32 to C."})
        return {
            "tiles": tiles,
            "headline": f"Trained in {result['training_seconds']:.1f} s.",
            "figures": [
                _digits_figure(result["digits"]),
                _weights_figure(result),
                _neuron_figure(result["neuron"]),
            ],
            "tables": [_use_table(result["use"])],
            "claims": [],
        }
