"""Which options should BinaryConnect and ProxQuant have by default? Digits, network 64-128-10, validation accuracy.

Every setting after 2, 10 and 40 epochs of batches of 32, two seeds, constant learning rate. ProxQuant is given the
length of the run ("T"), or takes its default of 1000 steps.

    python benchmarks/baseline_defaults.py        writes benchmarks/results/baseline_defaults.json
"""

from qpsbgd.openmp import wait_passively

wait_passively()  # before torch is loaded

from pathlib import Path

import torch
import torch.nn.functional as F

from qpsbgd import QPSBGD, BinaryConnect, ProxQuant
from qpsbgd_paper.experiments.digits import split_digits
from qpsbgd_paper.framework.result_files import environment, write_json
from qpsbgd_paper.framework.training import BinaryMLP, accuracy

EPOCHS, SEEDS, BATCH = (2, 10, 40), 2, 32
SETTINGS = {
    "QP-SBGD, default": lambda model, steps: QPSBGD(model),
    "BC, default": lambda model, steps: BinaryConnect(model),
    **{
        f"BC, {update} {lr:g}": lambda model, steps, update=update, lr=lr: BinaryConnect(model, lr=lr, update=update)
        for update, rates in {"adam": (0.001, 0.01), "sign": (0.001, 0.003), "sgd": (0.3, 1.0, 3.0)}.items()
        for lr in rates
    },
    "ProxQuant, default": lambda model, steps: ProxQuant(model),
    **{
        f"ProxQuant, {update} {lr:g}, T": lambda model, steps, update=update, lr=lr: ProxQuant(
            model, lr=lr, update=update, steps=steps
        )
        for update, rates in {"sign": (0.03, 0.1, 0.3), "sgd": (3.0, 10.0), "adam": (0.003, 0.03)}.items()
        for lr in rates
    },
}


def train(make, epochs, seed):
    (inputs, targets), (held_inputs, held_targets) = split_digits("validation")
    torch.manual_seed(seed)
    model = BinaryMLP([64, 128, 10], gain="fan_in")
    steps = epochs * (len(inputs) // BATCH)
    optimizer = make(model, steps)
    for rows in torch.randint(0, len(inputs), (steps, BATCH)):
        optimizer.zero_grad()
        F.cross_entropy(model(inputs[rows]), targets[rows]).backward()
        optimizer.step()
    model.eval()
    return accuracy(model(held_inputs), held_targets)


def main():
    torch.set_num_threads(1)
    results = {}
    for name, make in SETTINGS.items():
        results[name] = {str(epochs): [train(make, epochs, seed) for seed in range(SEEDS)] for epochs in EPOCHS}
        means = [f"{sum(values) / SEEDS:.3f}" for values in results[name].values()]
        print(f"{name:26}", *means, flush=True)
    target = Path(__file__).parent / "results" / "baseline_defaults.json"
    write_json(target, {"made with": environment(), "settings": {"batch": BATCH, "seeds": SEEDS}, "results": results})


if __name__ == "__main__":
    main()
