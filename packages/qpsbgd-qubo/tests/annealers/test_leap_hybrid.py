# ruff: noqa: E402
from lazy import Lazy, skip_without

skip_without("torch", "qpsbgd", "dimod", "dwave.system")


import dimod
import pytest
import torch

from qpsbgd.testing import SOLVER_CHECKS, random_family
from qpsbgd_qubo.annealers.budget import BudgetSpent
from qpsbgd_qubo.annealers.recordings import RecordingError
from qpsbgd_qubo.annealers.replay import Replay
from qpsbgd_qubo.solvers.exact.exact import Exact

mocks, leap = Lazy("dwave_mocks"), Lazy("qpsbgd_qubo.annealers.leap_hybrid")

pytestmark = pytest.mark.filterwarnings("ignore:solver 'leap-hybrid' is about to send")


@pytest.mark.filterwarnings("ignore:All bqm biases are zero")
@pytest.mark.parametrize("check", SOLVER_CHECKS, ids=lambda check: check.__name__.removeprefix("check_"))
def test_it_passes_every_check_on_the_mock_service(check):
    check(leap.LeapHybrid(sampler=mocks.Seeded()))


def test_all_layers_of_a_step_are_one_submission_and_the_charge_is_counted():
    sampler = mocks.Service()
    families = [random_family(9, 5, 20), random_family(4, 2, 20)]
    solver = leap.LeapHybrid(sampler=sampler)
    before = solver.estimate([(9, 5), (4, 2)])
    solutions = solver.solve_all(families)
    assert len(sampler.sent) == solver.submissions == before.submissions == 1
    assert solver.qpu_seconds == pytest.approx(before.qpu_seconds) == pytest.approx(1.0)
    bqm = sampler.sent[0][0]
    assert (bqm.num_variables, bqm.num_interactions) == (53, 5 * 36 + 2 * 6)
    for family, solution in zip(families, solutions, strict=True):
        assert solution.spins.shape == family.linear.shape
        torch.testing.assert_close(solution.energies, family.energies(solution.spins))
        assert solution.stats["solver"] == "leap-hybrid"
        assert not any("chain" in name for name in solution.stats)


def test_columns_weigh_alike_whatever_the_size_of_their_gradients():
    sampler = mocks.Service()
    small, large = random_family(4, 1, 8) * 1e-6, random_family(4, 1, 8) * 1e6
    leap.LeapHybrid(sampler=sampler).solve_all([small, large])
    bqm = sampler.sent[0][0]
    biases = [max(abs(bqm.get_linear(v)) for v in part) for part in (range(4), range(4, 8))]
    assert biases[0] == pytest.approx(biases[1], rel=1e-3)


def test_steps_beyond_the_services_limits_are_split_and_nothing_is_lost():
    sampler = mocks.Seeded(maximum_number_of_variables=12)
    family = random_family(5, 5, 20)
    solver = leap.LeapHybrid(sampler=sampler)
    solution = solver.solve(family)
    assert [bqm.num_variables for bqm, _ in sampler.sent] == [10, 10, 5]
    torch.testing.assert_close(solution.energies, Exact().solve(family).energies)
    with pytest.raises(ValueError, match=r"has 13 variables and 91 biases per column.*takes at most 12"):
        solver.solve(random_family(13, 1, 20))


@pytest.mark.parametrize(
    ("limits", "sizes", "groups"),
    [
        ({}, [5, 9, 1], [[0, 1, 2]]),
        ({"maximum_number_of_variables": 10}, [5, 5, 5, 6, 10], [[0, 1], [2], [3], [4]]),
        ({"maximum_number_of_biases": 30}, [5, 5, 5, 7], [[0, 1], [2], [3]]),  # 15, 15, 15 and 28
        ({"maximum_number_of_biases": 29}, [5, 5, 4], [[0], [1, 2]]),  # 15, 15 and 10
        ({"maximum_number_of_variables": 9, "maximum_number_of_biases": 30}, [5, 5, 4, 4], [[0], [1, 2], [3]]),
    ],
)
def test_columns_go_together_as_far_as_the_services_limits_allow(limits, sizes, groups):
    sampler = mocks.Service(**{"maximum_number_of_biases": None} | limits)
    leap.LeapHybrid(sampler=sampler).solve_all([random_family(size, 1, 20) for size in sizes])
    assert [bqm.num_variables for bqm, _ in sampler.sent] == [sum(sizes[k] for k in group) for group in groups]


def test_the_least_time_grows_evenly_between_the_services_figures():
    sampler = mocks.Service(minimum_time_limit=[[1, 3.0], [101, 5.0]])
    solver = leap.LeapHybrid(sampler=sampler)
    assert [solver.estimate([(n, m)]).qpu_seconds for n, m in ((1, 1), (51, 1), (17, 3), (300, 1))] == [3, 4, 4, 5]
    assert solver.estimate([(1, 1), (50, 1)]).submissions == 1


def test_problems_that_were_taken_count_although_their_answer_failed():
    class Broken(mocks.Service):
        def sample(self, bqm, **parameters):
            super().sample(bqm, **parameters)
            raise ValueError("the answer cannot be decoded")

    sampler = Broken()
    solver = leap.LeapHybrid(sampler=sampler, max_qpu_seconds=2.5)
    for reason in (ValueError, ValueError, BudgetSpent, BudgetSpent):
        with pytest.raises(reason):
            solver.solve(random_family(4, 2, 8))
    assert len(sampler.sent) == solver.submissions == 2


def test_recorded_answers_are_not_bought_again(tmp_path):
    path = tmp_path / "run.hybrid"
    families = [random_family(4, 3, 8, seed=seed) for seed in range(3)]
    solver = leap.LeapHybrid(sampler=mocks.Service(), record=path)
    spins = [solver.solve(family).spins for family in families]
    service = mocks.Service()
    again = leap.LeapHybrid(sampler=service, record=path)
    assert all(torch.equal(again.solve(family).spins, s) for family, s in zip(families, spins, strict=True))
    assert not service.sent
    with pytest.raises(RecordingError, match="belongs to another problem"):
        leap.LeapHybrid(sampler=service, record=path).solve(families[1])
    with pytest.raises(RecordingError, match="must say with which chip"):
        Replay(path)


def test_other_samplers_and_a_region_for_one_are_refused():
    with pytest.raises(TypeError, match="must be a LeapHybridSampler"):
        leap.LeapHybrid(sampler=dimod.ExactSolver())
    with pytest.raises(ValueError, match="leave them out when a sampler is given"):
        leap.LeapHybrid(sampler=mocks.Service(), region="eu-central-1")


@pytest.mark.parametrize("size", [1e-200, 1e200])
def test_gradients_of_any_size_are_sent(size):
    sampler = mocks.Seeded()
    family = random_family(6, 3, 12, dtype=torch.float64) * size
    solution = leap.LeapHybrid(sampler=sampler, descent=False).solve(family)
    assert torch.equal(solution.spins, Exact().solve(random_family(6, 3, 12, dtype=torch.float64)).spins)
