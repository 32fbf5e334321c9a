import copy

import numpy as np
import pytest
from closeness import assert_close
from lazy import Lazy

pytest.importorskip("dimod", reason="needs dimod")
pytest.importorskip("dwave.samplers", reason="needs dwave.samplers")

import dimod

from qpsbgd_qubo.solvers import make_solver
from qpsbgd_qubo.solvers.external.dimod import Dimod
from qpsbgd_qubo.testing import check_solver, lowest_energies, random_family

mocks = Lazy("dwave_mocks")


def training():
    """A layer and an optimiser, where the training library is installed."""
    return pytest.importorskip("qpsbgd.nn").BinaryLinear, pytest.importorskip("qpsbgd").QPSBGD


class Own(dimod.Sampler):
    """ExactSolver, answering in a way of its own."""

    parameters = {"shout": []}  # noqa: RUF012
    properties = {}  # noqa: RUF012

    def __init__(self, answer=lambda samples: samples):
        self.answer = answer

    def sample(self, bqm, shout=False):
        return self.answer(dimod.ExactSolver().sample(bqm))


def backwards(samples):
    array, labels = samples.record.sample[:, ::-1], list(samples.variables)[::-1]
    return dimod.SampleSet.from_samples((array, labels), samples.vartype, samples.record.energy, sort_labels=False)


@pytest.mark.parametrize(
    "answer", [backwards, lambda samples: samples.change_vartype("BINARY", inplace=False)], ids=["backwards", "bits"]
)
def test_a_sampler_may_answer_in_any_order_and_vartype(answer):
    check_solver(Dimod(Own(answer)))
    family = random_family(9, 3, 5, dtype=np.float64)
    solution = Dimod(Own(answer), {"shout": True}).solve(family)
    assert_close(solution.energies, lowest_energies(family))
    assert solution.stats["sampler"] == "Own"
    assert not solution.proven_optimal.any()


def test_a_sampler_that_loses_variables_or_has_no_answer_is_reported():
    found = dimod.SampleSet.from_samples({"a": 1}, "SPIN", 0.0)
    none = dimod.SampleSet.from_samples(np.empty((0, 3)), "SPIN", [])
    for answer, message in ((found, r"Own must return .*0…2.* \['a'\]"), (none, "at least one sample")):
        with pytest.raises(RuntimeError, match=message):
            Dimod(Own(lambda samples, answer=answer: answer)).solve(random_family(3, 1, 3))


def test_a_sampler_object_is_a_solver():
    family = random_family(5, 2, 8, dtype=np.float64)
    solver = make_solver(Own(), parameters={"shout": True})
    assert solver == Dimod(solver.sampler, {"shout": True})
    assert_close(solver.solve(family).energies, lowest_energies(family))


def test_training_takes_a_sampler_object():
    torch = pytest.importorskip("torch")
    BinaryLinear, QPSBGD = training()
    layer = BinaryLinear(5, 2)
    optimizer = QPSBGD(layer, lr=0.1, solver=dimod.ExactSolver())
    before = layer.weight.detach().clone()
    layer(torch.randn(8, 5)).square().sum().backward()
    optimizer.step()
    assert optimizer.param_groups[0]["projection"].name == "spins"
    assert not torch.equal(layer.weight, before)


def test_a_copied_optimiser_shares_the_sampler_object():
    class Open(Own):
        def __deepcopy__(self, memo):
            raise TypeError("an open connection cannot be copied")

    BinaryLinear, QPSBGD = training()
    optimizer = QPSBGD(BinaryLinear(5, 2), solver=Open())
    assert copy.deepcopy(optimizer).solver is optimizer.solver


def test_a_bare_chip_is_refused_and_an_embedded_one_is_taken():
    chip = mocks.MockDWaveSampler(topology_type="zephyr", topology_shape=[2])
    with pytest.raises(TypeError, match=r"'dwave', sampler=sampler\).*EmbeddingComposite\(sampler\)"):
        make_solver(chip)
    family = random_family(3, 1, 8, dtype=np.float64)
    embedded = make_solver(mocks.EmbeddingComposite(chip), parameters={"num_reads": 50})
    assert_close(embedded.solve(family).energies, lowest_energies(family))


def test_a_sampler_of_the_hybrid_service_becomes_its_solver():
    class Hybrid(Own):
        properties = {"minimum_time_limit": [[1, 3.0]]}  # noqa: RUF012

    assert type(make_solver(Hybrid())).__name__ == "LeapHybrid"
