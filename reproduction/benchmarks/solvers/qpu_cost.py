"""What does training cost on a D-Wave chip, packed, compared with one embedding and one submission per column?

All ways run on D-Wave's mock of a chip, with submissions and reads counted: the solver `dwave` with one tile per
column; the same with the reads of a column shared out among spare tiles; and `EmbeddingComposite`, which embeds every
QUBO anew, as the paper did. All take the same number of reads of every QUBO, or a few more. QPU time is 8.5 ms of
programming per submission and 82 µs per read, the mock's own figures; the mock does not anneal, so answers are not
compared here. Host seconds are those of this machine, tile search included.

    python benchmarks/solvers/qpu_cost.py     writes results/qpu_cost.json (QPSBGD_DATA: folder with mnist/)
"""

from qpsbgd.openmp import wait_passively

wait_passively()  # before torch is loaded

import tempfile
import time
from functools import partial

import numpy as np
import torch
from dwave.system import EmbeddingComposite
from dwave.system.testing import MockDWaveSampler

from qpsbgd import QPSBGD
from qpsbgd.projections import Printed
from qpsbgd.qubo import Solution
from qpsbgd.solvers import Solver
from qpsbgd.testing import random_family
from qpsbgd_paper.experiments.mnist import SETTINGS, split
from qpsbgd_paper.framework.measurements import print_rows, publish
from qpsbgd_paper.framework.training import BinaryMLP, fit_classifier
from qpsbgd_qubo.annealers.chips import PROGRAMMING_SECONDS, READOUT_SECONDS
from qpsbgd_qubo.annealers.dwave import DWave

READS, UPDATES = 100, 50
READ_SECONDS = READOUT_SECONDS + 20e-6
CHIPS = {
    "Pegasus P16": ("pegasus", [16], 0.0),
    "Pegasus P16, 5 % broken": ("pegasus", [16], 0.05),
    "Zephyr Z15": ("zephyr", [15, 4], 0.0),
    "Zephyr Z15, 5 % broken": ("zephyr", [15, 4], 0.05),
}


class Counted(MockDWaveSampler):
    submissions, reads = 0, 0

    def sample(self, bqm, num_reads=1, **options):
        self.submissions += 1
        self.reads += num_reads
        return super().sample(bqm, num_reads=num_reads, **options)

    def seconds(self):
        return self.submissions * PROGRAMMING_SECONDS + self.reads * READ_SECONDS


def chip(name):
    topology, shape, broken = CHIPS[name]
    options = {"topology_type": topology, "topology_shape": shape, "parameter_warnings": False}
    nodes = np.array(MockDWaveSampler(**options).nodelist)
    lost = nodes[np.random.default_rng(0).random(len(nodes)) < broken].tolist()
    return Counted(**options, broken_nodes=lost or None, substitute_kwargs={"seed": 0})


class OneByOne(Solver):
    """The paper's way: every column is embedded anew and is a submission of its own."""

    def __init__(self, sampler):
        self._composite = EmbeddingComposite(sampler)

    def _solve(self, family):
        columns = []
        for column in range(family.num_columns):
            bqm = family.to_bqm(column)
            first = self._composite.sample(bqm, num_reads=READS).first.sample
            columns.append([float(first[spin]) for spin in range(family.num_spins)])
        return Solution.of(family, torch.tensor(columns).T)


def train(solver):
    """The network of the experiment mnist at the paper's settings."""
    settings = SETTINGS["paper"]
    inputs, targets, _, _ = split("1/2", seed=0, choosing=False)
    torch.manual_seed(0)
    model = BinaryMLP([16, 4, 4, 2], gain=settings["gain"], constant=settings["constant"])
    optimizer = QPSBGD(model, lr=0.03, projection=Printed(scale=8.0, solver=solver))
    fit_classifier(model, (inputs, targets), batch=settings["batch"], steps=UPDATES, optimizers=[optimizer])


def layer(n, m):
    return lambda solver: solver.solve(random_family(n, m, 2 * n))


def compare(what, work, name, *, columns=None):
    """All ways for one piece of work on one chip; given a number of columns, those one by one are counted, not run."""

    def run(make):
        sampler, begin = chip(name), time.perf_counter()
        work(make(sampler))
        seconds = {"chip_seconds": sampler.seconds(), "host_seconds": time.perf_counter() - begin}
        return {"submissions": sampler.submissions, **seconds}

    with tempfile.TemporaryDirectory() as folder:
        packed = partial(DWave, num_reads=READS, cache=folder)
        ways = {"packed": run(lambda sampler: packed(sampler=sampler, copies=1))}
        again = run(lambda sampler: packed(sampler=sampler, copies=1))  # the tiles are on disk now
        ways["packed"]["host_seconds_again"] = again["host_seconds"]
        ways["shared"] = run(lambda sampler: packed(sampler=sampler, copies=16, share_reads=True))
    if columns is None:
        single = run(OneByOne)
    else:
        seconds = columns * (PROGRAMMING_SECONDS + READS * READ_SECONDS)
        single = {"submissions": columns, "chip_seconds": seconds, "by": "count, not run"}
    for way in ways.values():
        way["times_less_chip_time"] = single["chip_seconds"] / way["chip_seconds"]
    return {"what": what, "chip": name, **ways, "one_by_one": single}


def main():
    torch.set_num_threads(2)
    cases = [partial(compare, f"mnist, {UPDATES} updates of 16-4-4-2", train, "Pegasus P16")]
    for name, columns in zip(CHIPS, (None, 84, 84, 84), strict=True):
        cases += [partial(compare, "layer of 16 inputs, 84 columns", layer(16, 84), name, columns=columns)]
    cases += [partial(compare, "layer of 10 inputs, 1000 columns", layer(10, 1000), "Pegasus P16", columns=1000)]
    results = print_rows(case() for case in cases)
    settings = {"reads": READS, "updates": UPDATES, "programming_seconds": PROGRAMMING_SECONDS}
    publish(__file__, settings=settings | {"read_seconds": READ_SECONDS}, results=results)


if __name__ == "__main__":
    main()
