# ruff: noqa: E402
from lazy import Lazy, skip_without

skip_without("torch", "qpsbgd", "dimod", "dwave.system")

import copy
import pickle

import dimod
import numpy as np
import pytest
import torch

from qpsbgd import QPSBGD
from qpsbgd.checkpoint import Checkpoint
from qpsbgd.nn import BinaryLinear
from qpsbgd.qubo import QuboFamily
from qpsbgd.solvers import make_solver
from qpsbgd.testing import SOLVER_CHECKS, random_family
from qpsbgd_qubo.annealers import submissions
from qpsbgd_qubo.annealers.budget import BudgetSpent
from qpsbgd_qubo.annealers.virtual_qpu import VirtualQPU
from qpsbgd_qubo.solvers.exact.exact import Exact

mocks, dwave, exceptions = (
    Lazy(name) for name in ("dwave_mocks", "qpsbgd_qubo.annealers.dwave", "dwave.cloud.exceptions")
)


def mock(topology="pegasus", size=4, *, broken=0.0, sampler=None):
    shape = [size] if topology == "pegasus" else [size, 4]
    options = {"topology_type": topology, "topology_shape": shape, "parameter_warnings": False}
    if broken:
        nodes = np.array(mocks.MockDWaveSampler(**options).nodelist)
        options["broken_nodes"] = nodes[np.random.default_rng(0).random(len(nodes)) < broken].tolist()
    return (sampler or mocks.MockDWaveSampler)(**options, substitute_kwargs={"seed": 0})


@pytest.mark.parametrize("check", SOLVER_CHECKS, ids=lambda check: check.__name__.removeprefix("check_"))
def test_it_passes_every_check_on_a_mock_chip(cache, check):
    check(dwave.DWave(sampler=mock(), cache=cache, num_reads=10))


@pytest.mark.parametrize(
    ("topology", "options"),
    [("pegasus", {"repair": "majority"}), ("zephyr", {"repair": "energy", "spin_reversals": 2})],
)
def test_chips_with_five_percent_of_their_qubits_broken_work(cache, topology, options):
    solver = dwave.DWave(sampler=mock(topology, 4, broken=0.05), cache=cache, num_reads=10, **options)
    families = [random_family(5, 3, 10), random_family(16, 9, 32)]
    for family, solution in zip(families, solver.solve_all(families), strict=True):
        torch.testing.assert_close(solution.energies, Exact().solve(family).energies)


@pytest.mark.slow
def test_a_layer_of_84_columns_of_16_is_one_submission_on_an_advantage_chip(cache):
    sampler = mock("pegasus", 16, sampler=mocks.Counting)
    family = random_family(16, 84, 32)
    solution = dwave.DWave(sampler=sampler, cache=cache, num_reads=5).solve(family)
    assert len(sampler.sent) == solution.stats["submissions"] == 1
    assert solution.stats["longest_chain"] <= 4
    assert (solution.energies - Exact().solve(family).energies).mean() < 0.05


def test_more_columns_than_tiles_are_split_and_none_is_lost(cache):
    """Columns whose optimum follows from their linear part alone: every answer must be the column's own."""
    sampler = mock(sampler=mocks.Counting)
    generator = torch.Generator().manual_seed(0)
    linear = torch.randn(10, 100, generator=generator)
    family = QuboFamily(torch.zeros(10, 10), linear, torch.zeros(100))
    solution = dwave.DWave(sampler=sampler, cache=cache, num_reads=2, descent=False, chain_strength=1e-3).solve(family)
    assert torch.equal(solution.spins, -linear.sign())
    assert len(sampler.sent) > 5
    assert solution.stats["submissions"] == len(sampler.sent)


def test_reads_can_be_shared_out_among_spare_tiles(cache):
    """Two columns of 3 on up to 4 tiles each: a quarter of the reads per submission, as many per column as before."""
    sampler = mock(sampler=mocks.Counting)
    solver = dwave.DWave(sampler=sampler, cache=cache, num_reads=18, copies=4, share_reads=True)
    before = solver.estimate([(3, 2)])
    solution = solver.solve(random_family(3, 2, 8))
    assert sampler.parameters_sent[0]["num_reads"] == 5
    assert solution.stats["reads"] == 20
    assert before.qpu_seconds == pytest.approx(8.5e-3 + 5 * 82e-6)


def test_everything_sent_lies_in_the_chips_ranges_and_is_not_rescaled(cache):
    sampler = mock(sampler=mocks.Counting)
    dwave.DWave(sampler=sampler, cache=cache, num_reads=2, annealing_time=50.0, spin_reversals=2).solve_all(
        [random_family(16, 3, 32) * 1e6, random_family(10, 2, 4, scale=0.1) * 1e-6]
    )
    assert len(sampler.sent) == 2
    for bqm, parameters in zip(sampler.sent, sampler.parameters_sent, strict=True):
        fixed = {"auto_scale": False, "answer_mode": "raw", "label": "qpsbgd"}
        assert parameters == {"num_reads": 1, "annealing_time": 50.0, **fixed}
        couplings = np.array(list(bqm.quadratic.values()))
        assert np.abs(list(bqm.linear.values())).max() <= 4 * (1 + 1e-6)
        assert -2 * (1 + 1e-6) <= couplings.min() <= couplings.max() <= 1 + 1e-6
        assert couplings.max() > 0.05  # every tile has its own scale: the small family is not lost beside the large


def test_sums_over_groups_of_couplers_lie_in_their_range(cache):
    """Advantage2 chips limit the sum of each of two groups of couplers at every qubit."""
    from dwave.system.coupling_groups import coupling_groups

    sampler = mock("zephyr", 4, sampler=mocks.Counting)
    sampler.properties["per_group_coupling_range"] = [-0.5, 0.25]
    dwave.DWave(sampler=sampler, cache=cache, num_reads=1).solve(random_family(16, 3, 8, scale=0.5))
    (bqm,) = sampler.sent
    sums = [sum(bqm.quadratic.get(edge, 0.0) for edge in g) for g in coupling_groups(sampler.to_networkx_graph())]
    assert -0.5 <= min(sums) < -0.2
    assert max(sums) <= 0.25


def test_spin_reversals_turn_the_problem_and_turn_the_answer_back(cache):
    linear = torch.randn(10, 3, generator=torch.Generator().manual_seed(0))
    family = QuboFamily(torch.zeros(10, 10), linear, torch.zeros(3))
    options = {"cache": cache, "num_reads": 2, "copies": 1, "descent": False, "chain_strength": 1e-3}
    sent = {}
    for reversals in (0, 1):
        sampler = mock(sampler=mocks.Counting)
        solution = dwave.DWave(sampler=sampler, spin_reversals=reversals, **options).solve(family)
        assert torch.equal(solution.spins, -linear.sign())
        sent[reversals] = np.array(list(sampler.sent[0].linear.values()))
    assert not np.allclose(sent[0], sent[1])
    np.testing.assert_allclose(np.abs(sent[0]), np.abs(sent[1]))


def test_a_layer_too_wide_for_the_chip_is_refused_with_the_widest_that_fits(cache):
    solver = dwave.DWave(sampler=mock(), cache=cache)
    with pytest.raises(ValueError, match=r"layer of 50 inputs .* largest on .* has 36; .*block="):
        solver.solve(random_family(50, 2, 60))


def test_packing_saves_submissions_and_time(cache):
    """By hand: a submission is 8.5 ms and 100 reads of 82 µs, 16.7 ms in all; one by one, every column is one."""
    solver = dwave.DWave(sampler=mock(), num_reads=100, cache=cache)
    step = [(10, 2), (4, 4), (4, 2)]
    packed, single = solver.estimate(step), solver.estimate(step, one_by_one=True)
    assert (packed.submissions, packed.qpu_seconds) == (1, pytest.approx(0.0167))
    assert (single.submissions, single.qpu_seconds) == (8, pytest.approx(8 * 0.0167))
    with pytest.raises(ValueError, match="layer of 100 inputs"):
        solver.estimate([(100, 1)])
    assert solver.submissions == 0


@pytest.mark.parametrize("layers", [[(10, 30)], [(10, 30), (4, 2)]])
def test_the_estimate_counts_the_submissions_that_the_solver_makes(cache, layers):
    solver = dwave.DWave(sampler=mock(), cache=cache, num_reads=4, spin_reversals=2)
    before = solver.estimate(layers)
    solver.solve_all([random_family(n, m, 20) for n, m in layers])
    assert solver.submissions == before.submissions


def test_the_optimiser_gives_the_cost_of_a_run_before_it(cache):
    model = torch.nn.Sequential(BinaryLinear(10, 4), torch.nn.Tanh(), BinaryLinear(4, 2))
    sampler = mock(sampler=mocks.Counting)
    cost = QPSBGD(model, solver=dwave.DWave(sampler=sampler, cache=cache, num_reads=100)).estimate(steps=30)
    assert (cost.submissions, cost.qpu_seconds) == (30, pytest.approx(30 * 0.0167))
    assert sampler.sent == []
    with pytest.raises(TypeError, match=r"(asks|uses) no annealer"):
        QPSBGD(model, solver="exact").estimate()


def test_a_budget_stops_training_with_a_checkpoint_and_a_larger_one_goes_on(cache, tmp_path):
    """The same weights as without a limit, and no anneal is paid twice."""
    inputs = torch.randn(30, 10, generator=torch.Generator().manual_seed(3))

    def trained(path, limit):
        torch.manual_seed(0)
        model = torch.nn.Sequential(BinaryLinear(10, 4), torch.nn.Tanh(), BinaryLinear(4, 2))
        solver = dwave.DWave(sampler=mock(sampler=mocks.Counting), cache=cache, num_reads=5, max_qpu_seconds=limit)
        optimizer = QPSBGD(model, lr=0.1, solver=solver)
        with Checkpoint(path, model=model, optimizer=optimizer) as run:
            for _ in run.steps(6):
                rows = torch.randint(0, 30, (8,))
                optimizer.zero_grad()
                model(inputs[rows]).square().sum().backward()
                optimizer.step()
        return model[0].weight.detach().clone(), solver

    whole, free = trained(tmp_path / "whole.pt", None)
    with pytest.raises(BudgetSpent, match="resume it with a larger max_qpu_seconds"):
        trained(tmp_path / "run.pt", 0.03)
    resumed, solver = trained(tmp_path / "run.pt", 1.0)
    assert torch.equal(resumed, whole)
    assert (solver.submissions, solver.qpu_seconds) == (free.submissions, pytest.approx(free.qpu_seconds))
    assert len(solver.sampler.sent) == 3


def test_a_limit_that_is_a_multiple_of_the_estimate_lasts_for_as_many_steps(cache):
    family = random_family(4, 2, 8)
    for reads in (1, 3, 7, 11):
        cost = VirtualQPU(size=3, cache=cache, num_reads=reads).estimate([(4, 2)]) * 10
        solver = VirtualQPU(size=3, cache=cache, num_reads=reads, max_qpu_seconds=cost.qpu_seconds)
        for _ in range(10):
            solver.solve(family)
        with pytest.raises(BudgetSpent):
            solver.solve(family)


@pytest.mark.parametrize(
    ("fault", "counted"),
    [
        (PermissionError("no such token"), 1),
        (ValueError("the answer cannot be decoded"), 1),
        (KeyError("spins"), 1),
        (dimod.exceptions.BinaryQuadraticModelStructureError("the chip has no such coupler"), 0),
        ("SolverAuthenticationError", 1),
        ("InvalidProblemError", 0),
        ("ProblemStructureError", 0),
    ],
    ids=lambda value: value if isinstance(value, str) else type(value).__name__,
)
def test_other_errors_are_not_retried_and_count_unless_they_prove_that_nothing_was_sent(cache, fault, counted):
    if isinstance(fault, str):
        fault = getattr(exceptions, fault)("no such place")
    sampler = mock(sampler=mocks.Counting)
    solver = dwave.DWave(sampler=sampler, cache=cache, num_reads=2, max_qpu_seconds=0.02)
    sampler.failures = [fault]
    with pytest.raises(type(fault)):
        solver.solve(random_family(4, 2, 8))
    assert solver.submissions == counted
    assert solver.qpu_seconds == pytest.approx(counted * (8.5e-3 + 2 * 82e-6))
    solver.solve(random_family(4, 2, 8))
    assert solver.submissions == counted + 1


def test_what_the_chip_does_not_take_is_refused_before_it_is_sent(cache):
    sampler = mock(sampler=mocks.Counting)
    sampler.properties.update(num_reads_range=[1, 100], annealing_time_range=[0.5, 2000])
    for options in ({"num_reads": 101}, {"num_reads": 5, "annealing_time": 3000}):
        with pytest.raises(ValueError, match="the chip takes"):
            dwave.DWave(sampler=sampler, cache=cache, **options).solve(random_family(4, 2, 8))
    with pytest.raises(ValueError, match="must be finite"):
        broken = random_family(4, 2, 8)
        broken.linear[0, 0] = float("nan")
        dwave.DWave(sampler=sampler, cache=cache).solve(broken)
    assert sampler.sent == []


def test_a_broken_configuration_is_reported(monkeypatch, tmp_path):
    monkeypatch.delenv("DWAVE_API_TOKEN", raising=False)
    (tmp_path / "bad.conf").write_text("[[[no ini")
    for path in (tmp_path / "bad.conf", tmp_path / "missing.conf"):
        monkeypatch.setenv("DWAVE_CONFIG_FILE", str(path))
        assert "dwave config create" in dwave.DWave.variants()[""]


def test_passing_faults_are_retried_with_growing_pauses(cache, monkeypatch):
    pauses = []
    monkeypatch.setattr(submissions.time, "sleep", pauses.append)
    sampler = mock(sampler=mocks.Counting)
    sampler.failures = [ConnectionError("lost"), exceptions.PollingTimeout("late")]
    family = random_family(4, 2, 8)
    solution = dwave.DWave(sampler=sampler, cache=cache, num_reads=5).solve(family)
    assert pauses == [1.0, 2.0]
    torch.testing.assert_close(solution.energies, Exact().solve(family).energies)

    sampler.failures = [ConnectionError("lost")] * 9
    with pytest.raises(ConnectionError, match="lost"):
        dwave.DWave(sampler=sampler, cache=cache, num_reads=5, retries=2).solve(family)
    assert len(sampler.failures) == 6


def test_one_connection_is_kept_and_closed(cache, monkeypatch):
    made = []

    def factory(**options):
        made.append(options)
        return mock(sampler=mocks.Counting)

    monkeypatch.setattr("dwave.system.DWaveSampler", factory)
    monkeypatch.setenv("DWAVE_API_TOKEN", "a-token")
    limited = {"num_reads": 2, "max_qpu_seconds": 1.0}
    with dwave.DWave(cache=cache, region="eu-central-1", chip="Advantage_system9", **limited) as solver:
        for _ in range(3):
            solver.solve(random_family(4, 2, 8))
        sampler = solver.connect()
    assert made == [{"region": "eu-central-1", "solver": "Advantage_system9"}]
    assert sampler.closed == 1
    solver.solve(random_family(4, 2, 8))
    assert len(made) == 2


def test_without_a_token_the_three_ways_to_set_one_are_named(cache, monkeypatch, tmp_path):
    monkeypatch.delenv("DWAVE_API_TOKEN", raising=False)
    monkeypatch.setenv("DWAVE_CONFIG_FILE", str(tmp_path / "none.conf"))
    (tmp_path / "none.conf").write_text("[defaults]\n")
    ways = (
        r"dwave config create.*DWAVE_API_TOKEN.*DWaveSampler\(token.*'virtual-qpu' needs neither.*qpsbgd qpu estimate"
    )
    with pytest.raises(RuntimeError, match=ways):
        make_solver("dwave", cache=cache)
    monkeypatch.setenv("DWAVE_API_TOKEN", "a-token")
    solver = dwave.DWave(cache=cache)
    assert dwave.DWave.variants() == {"": ""}
    monkeypatch.delenv("DWAVE_API_TOKEN")
    with pytest.raises(RuntimeError, match=ways):
        solver.solve(random_family(4, 2, 8))
    assert "needs an API token" in dwave.DWave.variants()[""]


@pytest.mark.parametrize(("name", "sampler"), [("dwave", "DWaveSampler"), ("leap-hybrid", "LeapHybridSampler")])
def test_a_wrong_token_and_a_missing_network_are_explained(monkeypatch, name, sampler):
    fault = exceptions.SolverAuthenticationError("Invalid token")

    def refuse(**_):
        raise fault

    monkeypatch.setattr(f"dwave.system.{sampler}", refuse)
    monkeypatch.setenv("DWAVE_API_TOKEN", "a-token")
    said = r"cannot open D-Wave's service.*network.*dwave config create.*DWAVE_API_TOKEN.*\(token.*'virtual-qpu' needs"
    with pytest.raises(RuntimeError, match=f"solver '{name}' {said}") as raised:
        make_solver(name).solve(random_family(4, 2, 8))
    assert raised.value.__cause__ is fault


def test_too_many_requests_are_retried_with_patience_and_then_explained(cache, monkeypatch):
    from dwave.cloud.api.exceptions import ResourceLimitsExceededError

    pauses = []
    monkeypatch.setattr(submissions.time, "sleep", pauses.append)
    sampler = mock(sampler=mocks.Counting)
    sampler.failures = [ResourceLimitsExceededError("429")] * 5
    solver = dwave.DWave(sampler=sampler, cache=cache, num_reads=5, retries=2)
    with pytest.raises(submissions.ServiceRefused, match=r"no more requests.*changed nothing.*wait"):
        solver.solve(random_family(4, 2, 8))
    assert pauses == [15.0, 30.0]
    solver.solve(random_family(4, 2, 8))
    assert len(sampler.sent) == 1


def test_a_spent_quota_is_explained_and_recorded_answers_are_kept(cache, tmp_path):
    from dwave.cloud.exceptions import SolverFailureError

    sampler, family = mock(sampler=mocks.Counting), random_family(4, 2, 8)
    solver = dwave.DWave(sampler=sampler, cache=cache, num_reads=5, record=tmp_path / "run.chip")
    first = solver.solve(family)
    sampler.failures = [SolverFailureError("Insufficient remaining solver access time in project")]
    with pytest.raises(submissions.ServiceRefused, match=r"used up.*record.*run the same again"):
        solver.solve(random_family(4, 2, 9))
    again = dwave.DWave(sampler=sampler, cache=cache, num_reads=5, record=tmp_path / "run.chip")
    assert torch.equal(again.solve(family).spins, first.spins)
    assert len(sampler.sent) == 1


def test_the_first_submission_without_a_limit_says_what_it_costs_and_the_next_does_not(cache, monkeypatch):
    monkeypatch.setattr("dwave.system.DWaveSampler", lambda **_: mock(sampler=mocks.Counting))
    monkeypatch.setenv("DWAVE_API_TOKEN", "a-token")
    solver = dwave.DWave(cache=cache, num_reads=2)
    with pytest.warns(UserWarning, match=r"first 1 .* 0\.0087 s .*max_qpu_seconds"):
        solver.solve(random_family(4, 2, 8))
    solver.solve(random_family(4, 2, 8))


def test_copies_and_pickles_open_a_connection_of_their_own(cache, monkeypatch):
    monkeypatch.setattr("dwave.system.DWaveSampler", lambda: mock(sampler=mocks.Counting))
    monkeypatch.setenv("DWAVE_API_TOKEN", "a-token")
    solver = dwave.DWave(cache=cache, num_reads=2, max_qpu_seconds=1.0)
    family = random_family(4, 2, 8)
    spins = solver.solve(family).spins
    for copied in (copy.deepcopy(solver), pickle.loads(pickle.dumps(solver))):
        assert copied.connect() is not solver.connect()
        assert torch.equal(copied.solve(family).spins, spins)


def test_answers_for_other_qubits_are_refused(cache):
    class Wrong(mocks.Counting):
        def sample(self, bqm, **parameters):
            found = super().sample(bqm, **parameters)
            return found.relabel_variables({v: -v - 1 for v in found.variables}, inplace=False)

    with pytest.raises(RuntimeError, match="must return reads of the"):
        dwave.DWave(sampler=mock(sampler=Wrong), cache=cache).solve(random_family(4, 2, 8))


def test_a_spent_budget_stops_before_anything_is_sent_and_the_optimiser_changes_nothing(cache):
    torch.manual_seed(0)
    sampler = mock(sampler=mocks.Counting)
    model = torch.nn.Sequential(BinaryLinear(10, 4), torch.nn.Tanh(), BinaryLinear(4, 2))
    optimizer = QPSBGD(model, solver=dwave.DWave(sampler=sampler, cache=cache, num_reads=2, max_qpu_seconds=0.02))
    inputs = torch.randn(8, 10)
    steps = 0
    with pytest.raises(BudgetSpent, match="nothing was sent"):
        for _ in range(10):
            before = copy.deepcopy((model.state_dict(), optimizer.state_dict()))
            sent = len(sampler.sent)
            model(inputs).square().sum().backward()
            optimizer.step()
            steps += 1
    assert steps == 2  # 8.66 ms per submission
    assert len(sampler.sent) == sent
    after = model.state_dict(), optimizer.state_dict()
    assert all(torch.equal(before[0][name], after[0][name]) for name in after[0])
    assert before[1]["solvers"] == after[1]["solvers"]

    resumed = dwave.DWave(sampler=sampler, cache=cache, num_reads=2, max_qpu_seconds=0.02)
    resumed.load_state_dict(after[1]["solvers"][0])
    with pytest.raises(BudgetSpent):
        resumed.solve(random_family(4, 2, 8))
