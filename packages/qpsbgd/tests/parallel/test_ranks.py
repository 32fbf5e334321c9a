import re
import subprocess
import sys
from pathlib import Path

import pytest
import rank_runs
import torch

from qpsbgd.parallel.distributed_solver import DistributedSolver
from qpsbgd.parallel.ranks import Ranks
from qpsbgd.projections import Printed, Ridge, Spins
from qpsbgd.projections.weights import Weights
from qpsbgd.qubo import QuboFamily
from qpsbgd.solvers import make_solver

PRINTED = {"projection": Printed(scale=1.0), "momentum": 0.9, "lr": 0.05, "clip": None}
SPINS = {"projection": Spins(refresh=2), "lr": 0.05, "clip": None}
RIDGE = {"projection": Ridge(refresh=2), "lr": 0.05}
WEIGHTS = {"projection": Weights(refresh=2), "lr": 0.3, "momentum": 0.5, "clip": None}
ALL = {"printed": PRINTED, "spins": SPINS, "ridge": RIDGE}


@pytest.fixture(scope="module")
def processes():
    made = rank_runs.Processes()
    yield made
    made.close()


def assert_same(found, expected):
    """Every rank has the weights of the first, bit for bit, and those are as expected, up to rounding."""
    for other in found[1:]:
        for name, weight in found[0]["weights"].items():
            assert torch.equal(weight, other["weights"][name])
    torch.testing.assert_close(found[0]["weights"], expected["weights"], rtol=1e-9, atol=1e-9)
    for one, other in zip(found[0]["spins"], expected["spins"], strict=True):
        assert torch.equal(one, other)


CASES = {
    "printed": (PRINTED, "dense"),
    "printed, exact": ({**PRINTED, "projection": Printed(scale=1.0, solver="exact"), "momentum": 0.0}, "dense"),
    "printed, literal": ({**PRINTED, "projection": Printed()}, "dense"),
    "printed, blocks": ({**PRINTED, "projection": Printed(scale=1.0, block=5)}, "dense"),
    "printed, convolutional": (PRINTED, "convolutional"),
    "printed, sampled rows": ({**PRINTED, "projection": Printed(scale=1.0, rows=32)}, "convolutional"),
    "spins": (SPINS, "dense"),
    "spins, exact, two bits": ({**SPINS, "projection": Spins(refresh=2, bits=2, solver="exact")}, "dense"),
    "spins, convolutional": (SPINS, "convolutional"),
    "ridge": (RIDGE, "dense"),
    "ridge, blocks": ({**RIDGE, "projection": Ridge(refresh=2, block=5)}, "dense"),
    "ridge, convolutional": (RIDGE, "convolutional"),
    "weights": (WEIGHTS, "dense"),
    "weights, convolutional": (WEIGHTS, "convolutional"),
    "weights, exact": ({**WEIGHTS, "projection": Weights(refresh=2, solver="exact")}, "dense"),
    "weights, windows": ({**WEIGHTS, "projection": Weights(refresh=2, solver="exact", window=3)}, "dense"),
    "ridge, sampled rows": ({**RIDGE, "projection": Ridge(refresh=2, rows=64)}, "convolutional"),
}


@pytest.mark.slow
@pytest.mark.parametrize("size", [2, 4])
@pytest.mark.parametrize("name", CASES)
def test_ranks_with_shares_of_a_batch_take_the_steps_of_one_process_with_all_of_it(name, size, processes):
    options, kind = CASES[name]
    expected = rank_runs.train(0, 1, options=options, kind=kind)
    assert_same(processes.run(size, rank_runs.train, options=options, kind=kind), expected)


@pytest.mark.slow
@pytest.mark.parametrize(
    "options", [SPINS, {**PRINTED, "projection": Printed()}, RIDGE], ids=["spins", "literal", "ridge"]
)
def test_unequal_shares_take_the_step_of_the_mean_of_the_ranks_losses(options, processes):
    expected = rank_runs.train(0, 1, options=options, sizes=[11, 5])
    assert_same(processes.run(2, rank_runs.train, options=options, sizes=[11, 5]), expected)
    equal = rank_runs.train(0, 1, options=options)
    assert not torch.equal(equal["weights"]["0.weight"], expected["weights"]["0.weight"])


@pytest.mark.slow
@pytest.mark.skipif(not torch.cuda.is_available(), reason="SyncBatchNorm runs on GPUs only")
@pytest.mark.parametrize("options", ALL.values(), ids=ALL)
def test_ranks_with_synchronised_batch_norm_take_the_steps_of_one_process(options, processes):
    settings = {"options": options, "kind": "normed", "device": "cuda"}
    assert_same(processes.run(2, rank_runs.train, **settings), rank_runs.train(0, 1, **settings))


@pytest.mark.slow
def test_ranks_in_single_precision_stay_equal_bit_for_bit(processes):
    for options in ALL.values():
        found = processes.run(2, rank_runs.train, options=options, dtype=torch.float32, steps=12)
        for name, weight in found[0]["weights"].items():
            assert torch.equal(weight, found[1]["weights"][name])


@pytest.mark.slow
@pytest.mark.parametrize("way", ["binaryconnect", "proxquant"])
def test_the_baselines_take_the_steps_of_one_process_too(way, processes):
    options = {"lr": 0.05} if way == "proxquant" else {"lr": 0.05, "update": "adam"}
    expected = rank_runs.train(0, 1, options=options, way=way)
    assert_same(processes.run(2, rank_runs.train, options=options, way=way), expected)


FAULTS = {
    "nan": r"0 \(BinaryLinear.*hold.* NaN or infinite|rank 1.*NaN or infinite",
    "solver": r"rank 1 failed.*ValueError: out of order|ValueError: out of order",
    "lost": r"rank 0 of 2 could not exchange.*start them again from the last checkpoint",
}


@pytest.mark.slow
@pytest.mark.parametrize("options", ALL.values(), ids=ALL)
@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_of_one_rank_stops_all_of_them_and_changes_nothing(fault, options, processes):
    if fault == "solver" and options is RIDGE:
        pytest.skip("the ridge has no solver")
    dies = [1] if fault == "lost" else []
    found = processes.run(2, rank_runs.faulty, dies=dies, fault=fault, options=options)
    for outcomes in found[: 1 if fault == "lost" else 2]:
        text, changed = outcomes[1]
        assert re.search(FAULTS[fault], text), text
        assert not changed
        if fault == "solver" or (fault == "nan" and options is PRINTED):  # the next step is sound again
            assert outcomes[2] == ("", True)


@pytest.mark.slow
@pytest.mark.parametrize("options", ALL.values(), ids=ALL)
def test_a_layer_that_only_some_ranks_use_takes_the_step_of_their_rows(options, processes):
    expected = rank_runs.unused_on_some_ranks(0, 1, options=options)
    first, second = processes.run(2, rank_runs.unused_on_some_ranks, options=options)
    for name, weight in first.items():
        assert torch.equal(weight, second[name])
    torch.testing.assert_close(first, expected, rtol=1e-9, atol=1e-9)


@pytest.mark.slow
def test_a_solver_with_a_state_is_asked_by_the_first_rank_alone(processes):
    (first, weights), (second, others) = processes.run(2, rank_runs.asked)
    assert (first, second) == (2, 0)
    assert all(torch.equal(*pair) for pair in zip(weights, others, strict=True))


@pytest.mark.slow
@pytest.mark.parametrize("options", ALL.values(), ids=ALL)
def test_one_rank_alone_may_have_a_monitor(options, processes):
    (seen, weights), (none, others) = processes.run(2, rank_runs.observed, options=options)
    assert len(seen) == 4
    assert none == []
    assert all(torch.equal(*pair) for pair in zip(weights, others, strict=True))


@pytest.mark.slow
@pytest.mark.parametrize("options", ALL.values(), ids=ALL)
@pytest.mark.parametrize("overflow", ["none", "all"])
def test_a_grad_scaler_skips_on_all_ranks_or_on_none(options, overflow, processes):
    (weights, still), (others, also) = processes.run(2, rank_runs.scaled, options=options, overflow=overflow)
    assert still == also == (overflow != "none")
    assert all(torch.equal(*pair) for pair in zip(weights, others, strict=True))


@pytest.mark.slow
@pytest.mark.parametrize("options", ALL.values(), ids=ALL)
def test_a_run_with_a_checkpoint_per_rank_goes_on_bit_for_bit(options, processes, tmp_path):
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    expected = processes.run(2, rank_runs.resumed, options=options, folder=str(whole), stop=6)
    processes.run(2, rank_runs.resumed, options=options, folder=str(parts), stop=3)
    found = processes.run(2, rank_runs.resumed, options=options, folder=str(parts), stop=6)
    for one, other in zip(found, expected, strict=True):
        assert all(torch.equal(*pair) for pair in zip(one, other, strict=True))


@pytest.mark.slow
def test_ranks_send_the_moments_that_renew_the_system_and_little_between(processes):
    settings = {"projection": Spins(refresh=100), "lr": 0.05}
    short, _ = processes.run(2, rank_runs.train, options=settings, steps=5)
    long, _ = processes.run(2, rank_runs.train, options=settings, steps=7)
    assert long["sent"] - short["sent"] == 2 * 8  # a status per step
    # Three renewals: the moments of 12 and of 9 inputs in double precision, and of how many rows they are.
    assert short["sent"] == 5 * 8 + 3 * 8 * (12**2 + 9**2 + 2)


@pytest.mark.slow
def test_the_example_runs_with_torchrun_and_learns_the_same():
    example = str(Path(__file__).parents[4] / "examples" / "07_many_processes.py")
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", example]
    found = [
        subprocess.run(command, check=True, capture_output=True, text=True, timeout=300).stdout
        for command in (torchrun, [sys.executable, example])
    ]
    accuracies = [[float(value) for value in re.findall(r"test accuracy ([\d.]+)", text)] for text in found]
    assert len(accuracies[0]) == 4
    # Sums over ranks are rounded otherwise, and signs near zero differ: most of all after the first epoch.
    assert accuracies[0] == pytest.approx(accuracies[1], abs=0.05)
    assert accuracies[0][-1] == pytest.approx(accuracies[1][-1], abs=0.02)


class TwoRanks(Ranks):
    """Rank 0 of two, whose partner answers with what it was given."""

    size, rank, partner = 2, 0, None

    def all_gather(self, values):
        return torch.stack([values, values])

    def all_gather_object(self, value):
        return [value, self.partner]


@pytest.mark.parametrize("columns", [1, 2, 7])
def test_two_ranks_answer_all_columns_once(columns):
    torch.manual_seed(0)
    family = QuboFamily(torch.eye(9), torch.randn(9, columns), torch.randn(columns))
    first, second = TwoRanks(), TwoRanks()
    second.rank = 1
    messages = []
    second.all_gather_object = lambda message: messages.append(message) or [message, message]
    DistributedSolver(make_solver("exact"), second).solve(family)
    first.partner = messages[0]
    found, expected = DistributedSolver(make_solver("exact"), first).solve(family), make_solver("exact").solve(family)
    assert torch.equal(found.spins, expected.spins)
    assert torch.equal(found.proven_optimal, expected.proven_optimal)
    torch.testing.assert_close(found.energies, expected.energies)


def test_join_is_refused_by_all_ranks_or_trains_them_alike(processes):
    refused = processes.run(2, rank_runs.uneven_batches, kind="qpsbgd")
    assert all("does not work inside torch's Join" in message for message in refused)
    first, second = processes.run(2, rank_runs.uneven_batches, kind="binaryconnect")
    assert first == second
