import numpy as np
import pytest
from closeness import assert_close

from qpsbgd_qubo.family import QuboFamily
from qpsbgd_qubo.solvers import best_on_interrupt, make_solver
from qpsbgd_qubo.testing import random_family

gurobipy = pytest.importorskip("gurobipy")

from qpsbgd_qubo.solvers.external import gurobi  # noqa: E402  # needs the package


@pytest.mark.parametrize(("num_spins", "rows", "scale"), [(11, 5, 0.5), (16, 40, 1.0), (24, 5, 0.5)])
def test_it_agrees_with_exact(num_spins, rows, scale):
    family = random_family(num_spins, 2, rows, scale=scale, seed=num_spins, dtype=np.float64)
    solution = make_solver("gurobi").solve(family)
    assert solution.proven_optimal.all()
    assert_close(solution.energies, make_solver("exact").solve(family).energies, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("size", [1e-8, 1.0, 1e7])
def test_indefinite_families_of_any_size_are_proven(size):
    generator = np.random.default_rng(1)
    quadratic = generator.standard_normal((14, 14))
    linear = generator.standard_normal((14, 3))
    quadratic += quadratic.T
    np.fill_diagonal(quadratic, 0)
    family = QuboFamily(quadratic * size, linear * size)
    solution = make_solver("gurobi").solve(family)
    assert solution.proven_optimal.all()
    exact = make_solver("exact").solve(family)
    assert_close(solution.energies / size, exact.energies / size, rtol=1e-9, atol=1e-9)


def test_out_of_time_it_returns_its_best_spins_unproven():
    family = random_family(60, 3, 60, scale=0.5)
    solution = make_solver("gurobi", time_limit=0).solve(family)
    assert (abs(solution.spins) == 1).all()
    assert not solution.proven_optimal.any()
    assert solution.stats["unproven"] == 3
    assert solution.stats["gap"] > 0


def test_a_wide_gap_proves_nothing():
    family = random_family(30, 2, 30, scale=0.5, dtype=np.float64)
    solution = make_solver("gurobi", mip_gap=1e9).solve(family)
    assert solution.stats["gap"] > 1e-6
    assert not solution.proven_optimal.all()


def test_a_column_is_answered_as_if_it_were_alone():
    family = random_family(40, 6, 20, scale=0.3, dtype=np.float64)
    solver = make_solver("gurobi", mip_gap=0.9)
    alone = [solver.solve(QuboFamily(family.quadratic, family.linear[:, [column]])).spins for column in range(6)]
    assert np.array_equal(solver.solve(family).spins, np.concatenate(alone, axis=1))


def test_nothing_is_printed(capfd):
    make_solver("gurobi").solve(random_family(12, 2, 12))
    assert capfd.readouterr() == ("", "")


def test_more_spins_than_the_licence_allows_are_refused_with_what_to_do(monkeypatch):
    def too_large(self):
        raise gurobipy.GurobiError(10010, "Model too large for size-limited license")

    monkeypatch.setattr(gurobipy.Model, "optimize", too_large)
    with pytest.raises(ValueError, match=r"200 variables.*has 201 spins.*gurobi\.com/academia"):
        make_solver("gurobi").solve(random_family(201, 1, 4))


def test_the_licence_and_the_time_come_before_the_eigenvalues(monkeypatch):
    family = random_family(600, 2, 40)
    monkeypatch.setattr(np.linalg, "eigvalsh", lambda matrix: pytest.fail("the licence comes first"))
    with pytest.raises(ValueError, match="has 600 spins"):
        make_solver("gurobi", time_limit=1).solve(family)
    monkeypatch.setattr(gurobipy.Model, "optimize", lambda model: None)
    monkeypatch.setattr(gurobi, "least_shift", lambda quadratic, *, seconds: None if seconds < 1 else pytest.fail())
    solution = make_solver("gurobi", time_limit=1).solve(family)
    assert not solution.proven_optimal.any() and (abs(solution.spins) == 1).all()


def test_costs_beside_large_penalties_are_not_called_proven():
    generator, wrong = np.random.default_rng(0), 0
    for _ in range(15):
        costs = np.triu(generator.normal(size=(14, 14)), 1)
        penalties = np.triu(generator.random((14, 14)) < 0.3, 1)
        couplings = np.where(penalties, generator.choice([-1e7, 1e7], (14, 14)), costs)
        family = QuboFamily(couplings + couplings.T, generator.normal(size=(14, 1)))
        solution, least = make_solver("gurobi").solve(family), make_solver("exact").solve(family).energies
        wrong += bool(solution.energies > least + 1e-3)
        assert not solution.proven_optimal.any()
    assert wrong  # by the size of costs


def test_a_missing_licence_file_is_reported_with_what_to_do(monkeypatch, tmp_path):
    monkeypatch.setenv("GRB_LICENSE_FILE", str(tmp_path / "none.lic"))
    with pytest.raises(RuntimeError, match=r"no valid licence.*none\.lic.*gurobi\.com/academia"):
        make_solver("gurobi").solve(random_family(4, 1, 4))
    assert "no valid licence" in gurobi.Gurobi.variants()[""]


def test_an_expired_licence_is_reported_as_such(monkeypatch, tmp_path):
    licence = (
        "TYPE=ACADEMIC\nEXPIRATION=2020-01-01\nHOSTID=deadbeef\nKEY=AAAAAAAA\nVERSION=12\nUSERNAME=a\nCKEY=AAAAAAAA\n"
    )
    (tmp_path / "old.lic").write_text(licence, encoding="utf-8")
    monkeypatch.setenv("GRB_LICENSE_FILE", str(tmp_path / "old.lic"))
    with pytest.raises(RuntimeError, match="expired 2020-01-01"):
        make_solver("gurobi").solve(random_family(4, 1, 4))


def test_other_errors_of_gurobi_are_passed_on(monkeypatch):
    def no_memory(**_):
        raise gurobipy.GurobiError(10001, "as Gurobi says it")

    monkeypatch.setattr(gurobipy, "Env", no_memory)
    with pytest.raises(gurobipy.GurobiError, match="as Gurobi says it"):
        make_solver("gurobi").solve(random_family(4, 1, 4))


def test_an_interrupted_search_stops_the_program(monkeypatch):
    monkeypatch.setattr(gurobi.GRB, "INTERRUPTED", gurobi.GRB.OPTIMAL)
    with pytest.raises(KeyboardInterrupt):
        make_solver("gurobi").solve(random_family(4, 1, 4))
    with best_on_interrupt() as interruption:
        solution = make_solver("gurobi").solve(family := random_family(4, 1, 4))
    assert interruption.came
    assert solution.energies == make_solver("exact").solve(family).energies
