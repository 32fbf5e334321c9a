"""What the README says first: who won, reasons with the figure of one benchmark each, and what steps cost."""

import numpy as np

from benchmarks.tables import results
from benchmarks.training.binarize_tables import rows_of
from benchmarks.training.training_tables import NETWORKS, counted, lead, tasks, today

DEEP = ("ResNet", "GPT")
"""Networks of step_cost.py whose default is the polar factor."""


def headline():
    """Who won, and reasons with the figure of one benchmark each."""
    leads = [lead(task) for task in NETWORKS]
    unseen = [100 * lead(f"{data}-{task}") for data in ("cifar100", "fashion") for task in ("resnet20-10", "vgg-5")]
    points = [f"{one:+.1f}".replace("-", "−") for one in unseen]
    ahead, level, behind = np.sum([counted("ridge", held_out=held_out) for held_out in (False, True)], axis=0)
    caption = (
        "One-bit weights on CIFAR-10 and text, first and last layer real. QP-SBGD at its defaults, no option but "
        "`steps` and `real=True`; every rival at the best rate of a grid. The default is ahead of every rival that was "
        f"run in {sum(one > 0 for one in leads)} of {len(leads)} settings. On held-out data its lead over the best "
        f"rival is {points[0]} points with ResNet-20 and {points[1]} with VGG-small on CIFAR-100, {points[2]} and "
        f"{points[3]} on Fashion-MNIST (one seed each). ±: deviation over seeds; –: not run. "
        "[docs/training.md](docs/training.md) has the grids, and smaller networks: on tabular sets, digits, Adult, "
        f"graphs, MNIST and Fashion-MNIST the default is ahead of the best tuned rival in {ahead} settings, level in "
        f"{level} and behind in {behind}."
    )
    reasons = [f"- **{reason}** {text()}" for reason, text in REASONS.items()]
    return "\n".join([today(forms=("spins",)), "", caption, "", *reasons])


def far():
    scores = [tasks()[task].popitem()[1]["ridge"]["scores"] for task in ("mnist-wide", "mnist-cnn-large")]
    dense, cnn = (f"{100 * np.mean(found):.1f} %" for found in scores)
    return (
        f"One bit per weight, no augmentation, MNIST: {dense} with three dense layers of 1024 units, {cnn} with a CNN."
    )


def without_training():
    """Accuracy of the dense network at one bit, by error feedback and by QUBOs."""
    accuracy = {}
    for method, bits in (("float", 32), ("search", 1), ("feedback", 1)):
        rows = rows_of("binarize", "mlp", method=method, bits=bits, size=None)
        accuracy[method] = f"{100 * np.mean([row['accuracy'] for row in rows]):.1f} %"
    return (
        f"A float network 784-512-512-10 with {accuracy['float']} on MNIST has {accuracy['search']} at one bit per "
        f"weight, without any training; GPTQ's error feedback leaves {accuracy['feedback']}."
    )


def deployed():
    sizes = results("deploy_x86_64")["networks"][0]["bytes"]
    return (
        f"784-512-512-10 takes {sizes['packed'] / 1e3:.0f} KB instead of {sizes['float32 parameters'] / 1e6:.1f} MB, "
        "as a packed file without torch, as C99 or as ONNX."
    )


def together():
    rows = results("solver_claims")["exact"]["against_gurobi"]
    ratios = [row["times_faster"] for row in rows if row["spins"] == 32]
    return (
        f"The exact solver proves 128 columns of 32 spins {min(ratios):.0f} to {max(ratios):.0f} times faster per "
        "column than Gurobi, one by one."
    )


def annealer():
    layer = next(row for row in results("qpu_cost")["results"] if "84 columns" in row["what"])
    packed, single = (layer[way]["submissions"] for way in ("packed", "one_by_one"))
    return (
        f"A layer of 16 inputs and 84 outputs takes {packed} submission instead of {single}, by the times of D-Wave's "
        "mock chip."
    )


REASONS = {
    "It goes far.": far,
    "It binarises trained networks.": without_training,
    "It deploys one bit per weight.": deployed,
    "It solves a layer's QUBOs together.": together,
    "It fills an annealer.": annealer,
}


def step_ratios():
    """What steps at the default and with spins cost, at least and at most."""
    costs = []
    for name, machine in (("step_cost_cpu", "two CPU cores"), ("step_cost_cuda", "an H200")):
        spans = {"default": [], "spins": []}
        for row in results(name)["results"]:
            if not row["busy"]:
                times = row["milliseconds"]
                chosen = "polar" if row["network"].startswith(DEEP) else "ridge"
                spans["default"].append(times[chosen] / times["AdamW"])
                spans["spins"].append(times["spins"] / times["AdamW"])
        default, spins = (f"{min(span):.1f} to {max(span):.1f}" for span in spans.values())
        costs.append(f"{default} (default) and {spins} times (spins) on {machine}")
    return f"- Beside the same binary network under AdamW, a training step takes {costs[0]}, {costs[1]}."
