import dataclasses

import numpy as np
import pytest

from qpsbgd_qubo.annealers.budget import Estimate
from qpsbgd_qubo.solvers import SOLVERS, make_solver
from qpsbgd_qubo.testing import random_family

CHIP = {
    "whole": {"num_reads": 1, "copies": 1, "spin_reversals": 0, "retries": 0, "seed": 0},
    "positive": {"chain_strength"},
    "positive or None": {"annealing_time", "max_qpu_seconds"},
    "flag": {"share_reads", "descent"},
}
OPTIONS = {
    "auto": {"whole": {"seed": 0}, "whole or None": {"rounds": 1}, "not negative or None": {"time_limit"}},
    "portfolio": {"whole": {"seed": 0}, "whole or None": {"rounds": 1}, "not negative or None": {"time_limit"}},
    "exact": {"whole": {"node_limit": 1}, "not negative or None": {"time_limit"}},
    "descent": {
        "whole": {"tabu": 0, "tenure": 0, "restarts": 0, "seed": 0},
        "whole or None": {"max_flips": 0},
        "flag": {"warm"},
    },
    "annealing": {"whole": {"sweeps": 1, "reads": 1, "seed": 0}, "positive": {"hot", "cold"}},
    "quantum-annealing": {
        "whole": {"sweeps": 1, "slices": 2, "reads": 1, "seed": 0},
        "positive": {"field", "temperature"},
    },
    "gurobi": {
        "whole": {"seed": 0},
        "not negative": {"mip_gap"},
        "not negative or None": {"time_limit"},
    },
    "dwave": CHIP,
    "leap-hybrid": {
        "whole": {"retries": 0},
        "positive or None": {"time_limit", "max_qpu_seconds"},
        "flag": {"descent"},
    },
    "virtual-qpu": {
        **CHIP,
        "whole": {**CHIP["whole"], "size": 2, "sweeps": 1, "slices": 2},
        "positive": {"chain_strength", "field", "temperature"},
        "not negative": {"h_error", "j_error", "broken"},
    },
}
TEXTS = {"dimod": {"sampler", "parameters"}, "replay": {"path"}}
OTHERS = {"label", "ledger", "record", "cache", "repair", "sampler", "region", "chip", "topology"}
NAN, INFINITE = float("nan"), float("inf")


@pytest.fixture(autouse=True)
def token(monkeypatch):
    monkeypatch.setenv("DWAVE_API_TOKEN", "a-token")


def bad_values(kind, least=None):
    """(value, error) for an option of this kind."""
    yield from (("abc", TypeError), ("3", TypeError), ([1], TypeError), (b"3", TypeError))
    if kind == "flag":
        yield from ((1, TypeError), (None, TypeError))
        return
    yield from ((True, TypeError), (np.True_, TypeError), (1j, TypeError))
    if "None" not in kind:
        yield None, TypeError
    if "whole" in kind:
        yield from ((1.5, TypeError), (NAN, TypeError), (np.float64(1.5), TypeError))
        yield from ((least - 1, ValueError), (np.int64(least - 1), ValueError))
    else:
        yield from ((NAN, ValueError), (INFINITE, ValueError), (-1, ValueError), (np.float32(-1), ValueError))
        yield 10**400, ValueError
        if "positive" in kind:
            yield from ((0, ValueError), (0.0, ValueError))


def made(solver, **options):
    if solver == "gurobi":
        pytest.importorskip("gurobipy")
    return make_solver(solver, **options)


@pytest.mark.parametrize("solver", OPTIONS)
def test_an_invalid_option_is_named_with_what_it_must_be(solver):
    for kind, names in OPTIONS[solver].items():
        for name in names:
            for value, error in bad_values(kind, names[name] if isinstance(names, dict) else None):
                with pytest.raises(error, match=f"^{name} must be .*, got "):
                    made(solver, **{name: value})


@pytest.mark.parametrize("solver", SOLVERS)
def test_every_option_of_every_solver_is_checked(solver):
    if solver in TEXTS:
        return
    listed = set().union(*OPTIONS[solver].values()) | OTHERS
    options = {each.name for each in dataclasses.fields(made(solver)) if each.init}
    assert options <= listed


@pytest.mark.parametrize("solver", OPTIONS)
def test_the_least_value_and_numbers_of_numpy_are_taken_and_made_plain(solver):
    for kind, names in OPTIONS[solver].items():
        for name in names:
            if kind == "flag" or name == "hot":  # the least hot is cold
                continue
            if "whole" in kind:
                given, plain = np.int32(names[name]), int
            else:
                given, plain = np.float32(1e-3 if "positive" in kind else 0), float
            value = getattr(made(solver, **{name: given}), name)
            assert value == given
            assert type(value) is plain
            if "None" in kind:
                assert getattr(made(solver, **{name: None}), name) is None


@pytest.mark.parametrize(
    ("solver", "options", "message"),
    [
        ("descent", {"tabu": 1.5}, "tabu must be an integer of at least 0 and at most 4.61168601843e+18, got 1.5"),
        ("auto", {"time_limit": NAN}, "time_limit must be None or a finite number of at least 0, got nan"),
        ("auto", {"time_limit": "abc"}, "time_limit must be None or a finite number of at least 0, got 'abc'"),
        ("virtual-qpu", {"broken": 1}, "broken must be a finite number of at least 0 and below 1, got 1"),
        ("virtual-qpu", {"topology": "torus"}, 'topology must be "pegasus" or "zephyr", got \'torus\''),
        ("dwave", {"repair": "glue"}, 'repair must be "majority" or "energy", got \'glue\''),
        ("annealing", {"hot": 0.1, "cold": 1}, "hot must be at least cold, got 0.1 and 1.0"),
        ("dimod", {"parameters": 5}, "parameters must be a dict of names and values, got 5"),
        (
            "gurobi",
            {"seed": 2_000_000_001},
            "seed must be an integer of at least 0 and at most 2000000000, got 2000000001",
        ),
    ],
)
def test_messages_say_what_is_allowed(solver, options, message):
    with pytest.raises((TypeError, ValueError)) as raised:
        made(solver, **options)
    assert str(raised.value) == message


def test_bounds_that_options_set_each_other_may_be_reached():
    assert made("annealing", hot=0.3, cold=0.3).hot == 0.3
    assert made("descent", warm=True, tabu=5).warm
    assert made("dwave", share_reads=True, copies=2).share_reads
    with pytest.raises(ValueError, match="set copies"):
        made("dwave", share_reads=True, copies=1)


@pytest.mark.parametrize(("steps", "error"), [(1.5, TypeError), (-1, ValueError), (True, TypeError)])
def test_an_estimate_is_for_a_whole_number_of_steps(steps, error):
    with pytest.raises(error, match=r"^steps must be an integer of at least 0"):
        Estimate(1, 0.1) * steps


@pytest.mark.parametrize("solver", ["auto", "descent", "annealing", "portfolio", "virtual-qpu"])
def test_the_largest_seed_is_one_that_every_kernel_takes(solver):
    chip = {"size": 4} if solver == "virtual-qpu" else {}
    make_solver(solver, seed=2**63 - 1, **chip).solve(random_family(12, 2, 20))
    with pytest.raises(ValueError, match="seed must be"):
        make_solver(solver, seed=2**63)
