"""Train within a budget of QPU time: estimate, limit, checkpoint, recording, replay.

Runs on a virtual chip (extra `dwave`). With a D-Wave Leap token, `make_solver("dwave", …)` takes the same options.
"""

import tempfile
from pathlib import Path

import torch
from torch import nn

from qpsbgd import QPSBGD, Checkpoint
from qpsbgd.nn import BinaryLinear
from qpsbgd.solvers import make_solver
from qpsbgd_qubo.annealers.budget import BudgetSpent

STEPS = 30
folder = Path(tempfile.mkdtemp())
inputs = torch.randn(400, 8, generator=torch.Generator().manual_seed(0))
targets = (inputs[:, :4].sum(1) > inputs[:, 4:].sum(1)).long()


def train(solver, checkpoint):
    torch.manual_seed(0)
    model = nn.Sequential(BinaryLinear(8, 6), nn.Hardtanh(), BinaryLinear(6, 2))
    optimizer = QPSBGD(model, lr=0.03, solver=solver)
    with Checkpoint(checkpoint, model=model, optimizer=optimizer) as run:
        for _ in run.steps(STEPS):
            rows = torch.randint(0, len(inputs), (32,))
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(inputs[rows]), targets[rows]).backward()
            optimizer.step()
    right = (model(inputs).argmax(1) == targets).float().mean()
    print(f"accuracy {right:.2f} after {solver.submissions} submissions, {solver.qpu_seconds:.3f} s of QPU time")
    return model[0].weight.detach()


cost = make_solver("virtual-qpu", num_reads=20, size=4).estimate([(8, 6), (6, 2)]) * STEPS
print(f"{STEPS} steps will take {cost.submissions} submissions and {cost.qpu_seconds:.3f} s of QPU time")

options = {"num_reads": 20, "size": 4, "record": folder / "run.chip"}
try:
    train(make_solver("virtual-qpu", **options, max_qpu_seconds=0.2), folder / "run.pt")
except BudgetSpent as reason:
    print(f"stopped: {reason}")
weights = train(make_solver("virtual-qpu", **options, max_qpu_seconds=1.0), folder / "run.pt")

replayed = train(make_solver("replay", path=folder / "run.chip"), folder / "replay.pt")  # no chip, no token
print("the replay gives the same weights:", torch.equal(weights, replayed))
