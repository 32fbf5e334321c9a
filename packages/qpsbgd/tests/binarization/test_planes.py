import itertools

import pytest
import torch
from elsewhere import elsewhere

from qpsbgd.binarization.feedback import Feedback, Range
from qpsbgd.binarization.kicks import PlaneSearch
from qpsbgd.binarization.planes import Effort, Fit
from qpsbgd.solvers import make_solver


def metric_and_weights(n=8, m=5, seed=0):
    generator = torch.Generator().manual_seed(seed)
    rows = torch.randn(4 * n, n, generator=generator, dtype=torch.float64)
    rows = rows @ torch.randn(n, n, generator=generator, dtype=torch.float64)  # correlated inputs
    return rows.T @ rows / len(rows), torch.randn(n, m, generator=generator, dtype=torch.float64)


def effort(solver="kicks", rounds=20, seed=0):
    return Effort(solver, rounds, torch.Generator().manual_seed(seed))


def best_energies(metric, weights, bits):
    """By trying all planes of every column, each with the scales that fit it; of a plane and its negative, one."""
    rest = itertools.product((-1.0, 1.0), repeat=len(weights) - 1)
    vectors = torch.tensor([(1.0, *others) for others in rest], dtype=torch.float64)
    lowest = torch.full((weights.shape[1],), torch.inf, dtype=torch.float64)
    for chosen in itertools.combinations(vectors, bits):
        planes = torch.stack(chosen, 1)
        system, sides = planes.T @ metric @ planes, planes.T @ metric @ weights
        if torch.linalg.matrix_rank(system) < bits:
            continue
        rest = weights - planes @ torch.linalg.solve(system, sides)
        lowest = torch.minimum(lowest, (rest * (metric @ rest)).sum(0))
    return lowest


def test_the_search_finds_the_best_signs_and_scales_of_small_layers():
    metric, weights = metric_and_weights()
    fit = Fit.rounded(metric, weights, bits=1)
    list(fit.improve(effort()))
    torch.testing.assert_close(fit.errors(), best_energies(metric, weights, 1))


def test_two_planes_come_near_the_best_of_small_layers():
    metric, weights = metric_and_weights(n=7, m=8)
    fit = Fit.rounded(metric, weights, bits=2)
    list(fit.improve(effort(rounds=40)))
    best = best_energies(metric, weights, 2)
    assert (fit.errors() >= best * (1 - 1e-6)).all()
    assert fit.errors().sum() < 2 * best.sum()


@pytest.mark.parametrize("bits", [1, 3])
def test_every_stage_loses_less_than_the_one_before(bits):
    metric, weights = metric_and_weights(n=60, m=20)
    fit = Fit.rounded(metric, weights, bits=bits)
    energies = {stage: fit.errors().sum() for stage in fit.improve(effort())}
    assert energies["search"] < energies["feedback"] < energies["rounding"]
    assert fit.planes.shape == (bits, 60, 20)
    assert (fit.planes.abs() == 1).all()
    assert (fit.scales >= 0).all()


def test_refitted_scales_solve_the_least_squares_problem_of_every_column():
    metric, weights = metric_and_weights(n=10, m=4)
    fit = Fit.rounded(metric, weights, bits=3)
    root = torch.linalg.cholesky(metric, upper=True)
    for j in range(4):
        wanted = torch.linalg.lstsq(root @ fit.planes[:, :, j].T, root @ weights[:, j, None]).solution[:, 0]
        torch.testing.assert_close(fit.scales[:, j], wanted)


def test_a_solver_of_families_can_take_the_place_of_kicks():
    metric, weights = metric_and_weights()
    fit = Fit.rounded(metric, weights, bits=1)
    assert list(fit.improve(effort(make_solver("exact")))) == ["rounding", "feedback", "search"]
    assert fit.errors().sum() < 1.05 * best_energies(metric, weights, 1).sum()


def test_margins_are_the_cost_of_flips():
    metric, weights = metric_and_weights(n=12, m=3)
    fit = Fit.rounded(metric, weights, bits=2)
    list(fit.improve(effort()))
    before, margins = fit.errors(), fit.margins()
    fit.planes[1, 4] *= -1
    cost = (fit.errors() - before) / (4 * fit.scales[1] * metric[4, 4])
    torch.testing.assert_close(margins[1, 4], cost)
    assert margins.min() > -1e-5  # a local minimum, in single precision


def gptq(metric, weights, scales):
    """One column at a time as published: the inverse's factor, errors passed on to all later weights."""
    order = torch.argsort(metric.diagonal(), descending=True)
    factor = torch.linalg.cholesky(torch.linalg.inv(metric[order][:, order])).T
    rest, found = weights[order].clone(), torch.empty_like(weights)
    for i in range(len(rest)):
        found[i] = torch.where(rest[i] >= 0, 1.0, -1.0)
        error = (rest[i] - scales * found[i]) / factor[i, i]
        rest[i:] -= factor[i, i:, None] * error
    answer = torch.empty_like(found)
    answer[order] = found
    return answer


def test_feedback_gives_the_answers_of_gptq():
    metric, weights = metric_and_weights(n=200, m=7)
    scales = weights.abs().mean(0)
    found = Feedback(metric).planes(weights, scales[None])[0, 0]
    torch.testing.assert_close(found, gptq(metric, weights, scales))


def test_the_nearest_point_in_range_is_where_no_step_inside_the_range_helps():
    metric, weights = metric_and_weights(n=10, m=6)
    limits = torch.full((6,), 0.7, dtype=torch.float64)
    point = Range(metric, weights).nearest(limits, steps=300)
    slope = metric @ (point - weights)
    inside = point.abs() < 0.7 * (1 - 1e-6)
    assert inside.any() and not inside.all()
    assert slope[inside].abs().max() < 1e-3 * slope.abs().max()
    assert (slope * point.sign())[~inside].max() <= 1e-3 * slope.abs().max()


def test_weights_that_are_all_zero_stay_so():
    metric, weights = metric_and_weights(n=10, m=3)
    weights[:, 1] = 0
    fit = Fit.rounded(metric, weights, bits=2)
    list(fit.improve(effort()))
    assert fit.scales[:, 1].abs().max() < 1e-9
    assert fit.scales.isfinite().all() and fit.margins().isfinite().all()


def test_on_another_device_a_plane_is_kicked_and_searched_as_on_the_cpu():
    metric, weights = metric_and_weights(n=20)
    target, spins = (metric @ weights).T.float().contiguous(), torch.sign(weights).T.float().contiguous()
    scales, found = weights.abs().mean(0).float(), []
    for there in (lambda one: one, elsewhere):
        search = PlaneSearch(metric, torch.Generator().manual_seed(1))
        fields = spins @ search._couplings
        kicked, kicked_fields = search._kick(there(spins), there(fields))
        assert (kicked != spins).any()
        found += [kicked.clone(), kicked_fields.clone()]
        found += search._descend(*map(there, (target, scales, kicked, kicked_fields)), 30)
    for one, other in zip(found[:4], found[4:], strict=True):
        torch.testing.assert_close(one, other.cpu(), rtol=1e-4, atol=1e-4)
