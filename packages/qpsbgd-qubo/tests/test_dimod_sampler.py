import unittest

import pytest

pytest.importorskip("dimod", reason="needs dimod")

import dimod
import dimod.testing
import numpy as np

from qpsbgd_qubo import FamilySampler


@dimod.testing.load_sampler_bqm_tests(FamilySampler)
class TestFamilySampler(unittest.TestCase):
    def test_it_keeps_the_sampler_api(self):
        dimod.testing.assert_sampler_api(FamilySampler())


def random_bqm(vartype, num_variables=12, dtype=np.float64):
    bqm = dimod.generators.gnp_random_bqm(num_variables, 0.6, vartype, random_state=1)
    bqm.offset = 1.5
    bqm.relabel_variables({index: ("v", index) for index in range(0, num_variables, 2)})
    return dimod.BinaryQuadraticModel(bqm, dtype=dtype) if dtype is not object else dimod.as_bqm(bqm, dtype=object)


@pytest.mark.parametrize(("vartype", "dtype"), [("SPIN", np.float32), ("BINARY", np.float64), ("BINARY", object)])
def test_it_finds_what_dimod_finds_by_trying_all(vartype, dtype):
    bqm = random_bqm(vartype, dtype=dtype)
    found = FamilySampler("exact").sample(bqm)
    assert found.first.energy == pytest.approx(dimod.ExactSolver().sample(bqm).first.energy, abs=1e-5)
    assert found.first.energy == pytest.approx(bqm.energy(found.first.sample), abs=1e-5)
    assert found.vartype is bqm.vartype
    assert set(found.variables) == set(bqm.variables)
    assert found.info["proven_optimal"] is True
    assert found.info["solver"] == "exact"


def test_reads_have_seeds_one_after_the_other():
    bqm = random_bqm("SPIN", 120)
    sampler = FamilySampler("annealing", sweeps=1, hot=5, cold=5, seed=3)
    several = sampler.sample(bqm, num_reads=6)
    assert len(several) == 6
    assert list(several.record.energy) == sorted(several.record.energy)
    single = [FamilySampler("annealing", sweeps=1, hot=5, cold=5).sample(bqm, seed=seed) for seed in range(3, 9)]
    assert sorted(s.first.energy for s in single) == pytest.approx(list(several.record.energy))
    assert len({round(s.first.energy, 9) for s in single}) > 1


def test_a_solver_without_a_seed_solves_once():
    found = FamilySampler("exact").sample(random_bqm("BINARY"), num_reads=5)
    assert len(found) == 1
    assert found.record.num_occurrences.tolist() == [5]
    assert "seed" not in FamilySampler("exact").parameters
    with pytest.raises(ValueError, match="seed must be left out, got 1"):
        FamilySampler("exact").sample(random_bqm("BINARY"), seed=1)


def test_an_empty_model_has_one_empty_answer_per_read():
    found = FamilySampler().sample(dimod.BinaryQuadraticModel({}, {}, 1.5, "SPIN"), num_reads=2)
    assert found.record.energy.tolist() == [1.5, 1.5]


def test_wrong_arguments_are_refused():
    with pytest.raises(ValueError, match=r"num_reads must be .* at least 1, got 0"):
        FamilySampler().sample(random_bqm("SPIN"), num_reads=0)
    with pytest.raises(TypeError, match=r"num_reads must be .*integer"):
        FamilySampler().sample(random_bqm("SPIN"), num_reads=1.5)
    with pytest.raises(ValueError, match="unknown solver 'magic'"):
        FamilySampler("magic")
    with pytest.raises(ValueError, match="NaN"):
        FamilySampler().sample(dimod.BinaryQuadraticModel({"a": float("nan")}, {}, 0.0, "SPIN"))
    with pytest.warns(dimod.exceptions.SamplerUnknownArgWarning):
        FamilySampler().sample(random_bqm("SPIN"), beta_range=3)


def test_a_model_too_large_to_be_dense_is_refused_by_solvers_that_need_it_dense():
    bqm = dimod.BinaryQuadraticModel(10_001, "SPIN")
    with pytest.raises(MemoryError, match="up to 10000 variables, got 10001"):
        FamilySampler("descent").sample(bqm)
    bqm.add_quadratic(0, 10_000, -1.0)
    assert FamilySampler().sample(bqm).first.energy == -1.0


def test_a_time_limit_is_taken_by_solvers_that_have_one():
    bqm = dimod.generators.ran_r(5, 100, seed=0)
    with pytest.warns(RuntimeWarning, match="no time"):
        assert FamilySampler().sample(bqm, time_limit=0, seed=1).info["rounds"] == 0
    assert "time_limit" in FamilySampler().parameters and "time_limit" not in FamilySampler("descent").parameters
    with pytest.warns(dimod.exceptions.SamplerUnknownArgWarning, match="time_limit"):
        FamilySampler("descent").sample(bqm, time_limit=1)
