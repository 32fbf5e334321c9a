import re

import pytest
import rank_runs
import torch

from qpsbgd.projections import Ridge, Spins
from qpsbgd.projections.weights import Weights

pytestmark = pytest.mark.slow

RIDGE = {"projection": Ridge(refresh=2), "lr": 0.05}
SPINS = {"projection": Spins(refresh=2), "lr": 0.05}
WEIGHTS = {"projection": Weights(refresh=2), "lr": 0.3, "momentum": 0.5, "clip": None}
CASES = {
    "ridge": {"options": RIDGE},
    "ridge, blocks": {"options": {**RIDGE, "projection": Ridge(refresh=2, block=5)}},
    "ridge, relative rate": {"options": {"projection": "ridge", "steps": 10}},
    "ridge, default rates of scales": {"options": {"steps": 10, "real": True}, "kind": "scaled"},
    "ridge, real parameters": {"options": {**RIDGE, "real": {"lr": 0.01, "max_norm": 0.5}}},
    "ridge, convolutional": {"options": RIDGE, "kind": "convolutional"},
    "ridge, accumulated": {"options": RIDGE, "accumulate": True},
    "ridge, clipped": {"options": {**RIDGE, "real": True}, "clip": 0.1},
    "ridge, frozen": {"options": {**RIDGE, "real": True}, "frozen": True},
    "ridge, a discarded pass": {"options": RIDGE, "discarded": True},
    "polar": {"options": {"projection": "polar", "lr": 0.05}},
    "polar, convolutional": {"options": {"projection": "polar", "lr": 0.05}, "kind": "convolutional"},
    "spins": {"options": SPINS},
    "spins, outputs without gradient": {"options": SPINS, "dead": True},
    "spins, no momentum": {"options": {**SPINS, "momentum": 0.0}},
    "spins, exact, two bits": {"options": {**SPINS, "projection": Spins(refresh=2, bits=2, solver="exact")}},
    "spins, two bits": {"options": {**SPINS, "projection": Spins(refresh=2, bits=2)}},
    "spins, warm": {"options": {**SPINS, "projection": Spins(refresh=3, bits=2)}, "warm": True},
    "spins, convolutional": {"options": SPINS, "kind": "convolutional"},
    "spins, polar": {"options": {**SPINS, "projection": Spins(refresh=2, target="polar")}},
    "weights": {"options": WEIGHTS},
    "weights, outputs without gradient": {"options": WEIGHTS, "dead": True},
    "weights, windows": {"options": {**WEIGHTS, "projection": Weights(refresh=2, solver="exact", window=3)}},
    "weights, convolutional": {"options": WEIGHTS, "kind": "convolutional"},
    "BinaryConnect": {"options": {"lr": 0.05, "real": True}, "way": "binaryconnect"},
    "ProxQuant": {"options": {"lr": 0.05, "steps": 20}, "way": "proxquant"},
    "StraightThrough": {"options": {"update": "sgd"}, "way": "straight_through"},
    "Bop": {"options": {"lr": 0.1}, "way": "bop"},
}


@pytest.fixture(scope="module")
def processes():
    made = rank_runs.Processes()
    yield made
    made.close()


def assert_same(found, expected):
    for weights, _ in found:
        torch.testing.assert_close(weights, expected[0], rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("size", [2, 3])
@pytest.mark.parametrize("name", CASES)
def test_sharded_ranks_take_the_steps_of_one_process(name, size, processes):
    assert_same(processes.run(size, rank_runs.sharded_run, **CASES[name]), rank_runs.sharded_run(0, 1, **CASES[name]))


@pytest.mark.parametrize(
    "name", ["ridge", "polar", "spins", "weights", "spins, warm", "spins, exact, two bits", "BinaryConnect"]
)
def test_a_rank_without_output_units_takes_part(name, processes):
    assert_same(processes.run(4, rank_runs.sharded_run, **CASES[name]), rank_runs.sharded_run(0, 1, **CASES[name]))


@pytest.mark.parametrize("name", ["ridge, real parameters", "polar", "spins", "spins, warm", "BinaryConnect"])
@pytest.mark.parametrize(("before", "after"), [(2, 3), (3, 2), (2, 1), (1, 2)])
def test_a_run_goes_on_with_another_number_of_ranks(name, before, after, processes, tmp_path):
    run = CASES[name]
    expected = rank_runs.sharded_run(0, 1, **run, steps=range(6))
    folder = str(tmp_path / "state")
    processes.run(before, rank_runs.sharded_run, **run, steps=range(3), save=folder)
    assert_same(processes.run(after, rank_runs.sharded_run, **run, steps=range(3, 6), load=folder), expected)


def test_ranks_send_the_moments_of_their_rows(processes):
    _, sent = processes.run(2, rank_runs.sharded_run, options=RIDGE, kind="convolutional", steps=range(1))[0]
    moments = (18**2 + 36**2 + 48**2) * 8
    assert moments < sent < moments + 1000


ERRORS = {
    "printed": r'ValueError: projection "printed" needs whole layers.*sharded .*FSDPBinaryLinear',
    "muon": r'ValueError: update "muon" needs whole layers',
    "stateful": r"ValueError: .*keeps a state.*sharded .*FSDPBinaryLinear",
    "tensor parallel": r"TypeError: .*must be sharded by its first dimension.*tensor parallel",
    "grouped": r"ValueError: .*FSDPBinaryConv2d.*has groups",
    "flat": r"TypeError: the weight of .*BinaryLinear.*flat parameter.*fully_shard",
    "flat, original parameters": r"TypeError: the weight of .*BinaryLinear.*flat parameter.*fully_shard",
    "late": r"RuntimeError: .*FSDPBinaryLinear.*was sharded since.*fully_shard\(model\) before the optimiser",
    "late, BinaryConnect": r"RuntimeError: .*was sharded since",
}


def test_what_cannot_be_trained_in_shards_is_refused_with_the_reason(processes):
    for found in processes.run(2, rank_runs.shard_errors):
        for name, message in ERRORS.items():
            assert re.search(message, found[name]), (name, found[name])


@pytest.mark.parametrize("name", ["ridge", "BinaryConnect"])
def test_nan_in_the_shard_of_one_rank_stops_all_of_them(name, processes):
    first, second = processes.run(2, rank_runs.nan_in_a_shard, **CASES[name])
    assert re.search("rank 1 failed.*NaN", first)
    assert re.search("ValueError.*NaN", second)


@pytest.mark.parametrize("options", [RIDGE, SPINS], ids=["ridge", "spins"])
def test_a_policy_of_mixed_precision_trains_weights_in_single_precision(options, processes):
    for types, losses in processes.run(2, rank_runs.mixed_precision, options={**options, "real": True}):
        assert types == {torch.float32}
        assert losses[-1] < 0.8 * losses[0]


def test_a_solver_that_fails_on_one_rank_stops_all_of_them_and_the_next_step_is_sound(processes):
    first, second = processes.run(2, rank_runs.broken_solver)
    assert [(bool(text), changed) for text, changed in first] == [(False, True), (True, False), (False, True)]
    assert [changed for _, changed in second] == [True, False, True]
    assert re.search("rank 1 failed.*out of order", first[1][0])
    assert re.search("ValueError: out of order", second[1][0])
