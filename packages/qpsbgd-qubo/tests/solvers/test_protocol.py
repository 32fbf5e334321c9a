import importlib
import sys
from dataclasses import replace

import numpy as np
import pytest

import qpsbgd_qubo
from qpsbgd_qubo.family import QuboFamily
from qpsbgd_qubo.solvers import SOLVERS, Solver, make_solver
from qpsbgd_qubo.solvers.exact.exact import Exact
from qpsbgd_qubo.testing import SOLVER_CHECKS, check_solver, random_family

VARIANTS = {
    "descent with restarts": ("descent", {"restarts": 2}),
    "descent with tabu": ("descent", {"tabu": 30}),
    "annealing with reads": ("annealing", {"reads": 3}),
    "dimod tabu": ("dimod", {"sampler": "tabu", "parameters": {"num_restarts": 1, "timeout": 60_000}}),
    "dimod exact": ("dimod", {"sampler": "exact"}),
    "virtual-qpu": ("virtual-qpu", {"size": 4}),
    "gurobi with a gap": ("gurobi", {"mip_gap": 0.1}),
}
# The first two need a token (their checks run on mocks in test_dwave.py and test_leap_hybrid.py), the third a
# recording.
NEEDING_MORE = {"dwave", "leap-hybrid", "replay"}
# Simulated quantum annealing errs now and then, as an annealer does; the best of four reads hardly ever.
OPTIONS = {"quantum-annealing": {"reads": 4}}
EVERY = {name: (name, OPTIONS.get(name, {})) for name in SOLVERS if name not in NEEDING_MORE} | VARIANTS


@pytest.mark.filterwarnings("ignore:All bqm biases are zero")
@pytest.mark.parametrize("check", SOLVER_CHECKS, ids=lambda check: check.__name__.removeprefix("check_"))
@pytest.mark.parametrize("variant", EVERY)
def test_every_solver_passes_every_check(variant, check):
    name, options = EVERY[variant]
    check(make_solver(name, **options))


@pytest.mark.parametrize("name", ["exact", "annealing", "auto"])
def test_every_solver_takes_one_quadratic_part_and_many_linear_ones(name):
    solver, families = make_solver(name), [random_family(8, 3, 12, seed=seed) for seed in (0, 1)]
    state = solver.init(families[0].quadratic)
    for linear in (families[0].linear, families[1].linear):
        solution, expected = solver.solve(state, linear), solver.solve(QuboFamily(families[0].quadratic, linear))
        assert np.array_equal(solution.spins, expected.spins)
        state = solution.state
    blocks = solver.init(np.stack([family.quadratic for family in families]))
    solution = solver.solve(blocks, np.stack([family.linear for family in families]))
    plain = [QuboFamily(family.quadratic, family.linear) for family in families]
    assert np.array_equal(solution.spins, np.stack([solver.solve(family).spins for family in plain]))
    assert solution.energies.shape == (2, 3)


class Upside(Solver):
    """Answers with the worst spins instead of the best."""

    def _solve(self, family):
        return Exact().solve(family * -1)


class Careless(Exact):
    """Energies of several families are one percent off."""

    def solve_all(self, families):
        solutions = super().solve_all(families)
        return [replace(one, energies=1.01 * one.energies) if len(solutions) > 1 else one for one in solutions]


@pytest.mark.parametrize("solver", [Upside(), Careless()])
def test_the_checks_find_a_bad_solver(solver):
    with pytest.raises(AssertionError):
        check_solver(solver)


def test_a_solver_object_is_taken_as_it_is():
    solver = Upside()
    assert make_solver(solver) is solver
    with pytest.raises(TypeError, match="cannot be given to a solver object"):
        make_solver(solver, seed=1)


def test_unknown_names_and_options_are_refused():
    with pytest.raises(ValueError, match=r"^unknown solver None; choose one of auto, exact"):
        make_solver(None)
    with pytest.raises(TypeError, match="'descent' has no option sweeps; it has max_flips"):
        make_solver("descent", sweeps=3)


@pytest.mark.parametrize(
    ("missing", "module", "extra", "used"),
    [
        ("dimod", "solvers.external.dimod", "dimod", lambda: make_solver("dimod")),
        ("dimod", "family", "dimod", lambda: random_family(3, 1, 3).to_bqm(0)),
        ("dimod", "dimod_sampler", "dimod", lambda: qpsbgd_qubo.FamilySampler),
        ("gurobipy", "solvers.external.gurobi", "gurobi", lambda: make_solver("gurobi")),
        ("dwave.system", "annealers.dwave", "dwave", None),
        ("dimod", "annealers.submissions", "dwave", None),
        ("dwave.graphs", "annealers.virtual_qpu", "dwave", None),
    ],
)
def test_a_missing_package_is_named_with_its_install_line(monkeypatch, missing, module, extra, used):
    monkeypatch.setitem(sys.modules, missing, None)
    if module != "family":
        monkeypatch.delitem(sys.modules, f"qpsbgd_qubo.{module}", raising=False)
    with pytest.raises(ImportError, match=rf"pip install 'qpsbgd-qubo\[{extra}\]'"):
        used() if used else importlib.import_module(f"qpsbgd_qubo.{module}")


def test_a_solver_without_state_refuses_that_of_another():
    with pytest.raises(ValueError, match="keeps no state"):
        Exact().load_state_dict({"calls": 3})


def test_dimod_refuses_things_that_are_not_samplers_and_unknown_parameters():
    with pytest.raises(TypeError, match=r"dimod\.Sampler"):
        make_solver("dimod", sampler=3)
    with pytest.raises(ValueError, match="sampler"):
        make_solver("dimod", sampler="crystal-ball")
    with pytest.raises(TypeError, match="no parameter num_swoops"):
        make_solver("dimod", parameters={"num_swoops": 3})


def test_auto_says_which_solver_answered():
    small, large = random_family(16, 2, 8), random_family(17, 2, 8)
    assert make_solver("auto").solve(small).stats["solver"] == "exact"
    assert make_solver("auto").solve(large).stats["solver"] == "layer search"
    assert np.array_equal(make_solver("auto").solve(small).proven_optimal, np.array([True, True]))
