import unittest

import pytest

pytest.importorskip("dwave.system", reason="needs dwave")

import dimod
import dimod.testing
from dwave_mocks import Counting

from qpsbgd_qubo import PackedComposite
from qpsbgd_qubo.annealers.budget import BudgetSpent
from qpsbgd_qubo.annealers.virtual_qpu import VirtualChip


def mock():
    return Counting(topology_type="pegasus", topology_shape=[3], parameter_warnings=False)


@dimod.testing.load_sampler_bqm_tests(lambda: PackedComposite(VirtualChip(size=2), num_reads=5))
class TestPackedComposite(unittest.TestCase):
    def test_it_keeps_the_api_of_composites(self):
        packed = PackedComposite(mock())
        dimod.testing.assert_sampler_api(packed)
        dimod.testing.assert_composite_api(packed)


def models():
    """Models with nothing in common: sizes, kinds of variables, labels, offsets."""
    spin = dimod.BinaryQuadraticModel({"a": 1.0, "b": 0.0}, {("a", "b"): -2.0}, 0.5, "SPIN")
    binary = dimod.generators.gnp_random_bqm(6, 0.7, "BINARY", random_state=1)
    binary.relabel_variables({0: ("x", 0), 3: "three"})
    return [spin, binary, dimod.generators.ran_r(3, 5, seed=2), dimod.BinaryQuadraticModel({}, {}, 1.5, "SPIN")]


def test_many_models_are_one_submission_and_keep_labels_kinds_and_energies(cache):
    packed = PackedComposite(VirtualChip(size=4), num_reads=20, cache=cache)
    answers = packed.sample_many(models())
    for bqm, answer in zip(models(), answers, strict=True):
        assert answer.vartype is bqm.vartype and set(answer.variables) == set(bqm.variables)
        assert answer.first.energy == pytest.approx(bqm.energy(answer.first.sample))
        if bqm.num_variables:
            assert len(answer) == 20 and answer.info["submissions"] == 1
            assert answer.first.energy == pytest.approx(dimod.ExactSolver().sample(bqm).first.energy)


def test_a_sampler_is_asked_once_with_the_parameters_of_the_call(cache):
    chip = mock()
    packed = PackedComposite(chip, cache=cache)
    packed.sample_many(models(), num_reads=7)
    packed.sample(models()[0], num_reads=3, annealing_time=50)
    assert [sent["num_reads"] for sent in chip.parameters_sent] == [7, 3]
    assert chip.parameters_sent[1]["annealing_time"] == 50
    with pytest.warns(dimod.exceptions.SamplerUnknownArgWarning):
        packed.sample(models()[0], num_swoops=3)
    packed.close()
    assert not chip.closed


def test_a_budget_is_kept(cache):
    packed = PackedComposite(mock(), cache=cache, max_qpu_seconds=0.02)
    packed.sample_many(models())
    with pytest.raises(BudgetSpent):
        packed.sample_many(models())
