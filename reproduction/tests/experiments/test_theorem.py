import pytest
import torch

from qpsbgd.qubo import binary_map
from qpsbgd.solvers import make_solver
from qpsbgd_paper.experiments import theorem
from qpsbgd_paper.experiments.theorem import FixedPointStudy, explore


def test_answers_are_those_of_the_binary_map():
    spins = theorem._all_spins(4)
    for function in theorem.FUNCTIONS:
        jacobian, grads = theorem._problem(spins, 3, function, torch.Generator().manual_seed(1))
        found = theorem._least_squares(spins, jacobian, grads, scaled=False)
        for number in (0, 5, 15):
            own = jacobian[number] if len(jacobian) > 1 else jacobian[0]
            family = binary_map(own, grads[number][:, None], scale="literal")
            assert spins[found[number]].tolist() == make_solver("exact").solve(family).spins[:, 0].tolist()


def test_the_gradient_of_the_quadratic_problem_is_right():
    spins = theorem._all_spins(3)
    jacobian, grads = theorem._problem(spins, 2, "quadratic", torch.Generator().manual_seed(0))
    # y is even plus odd in x: yᵢ(x) − yᵢ(−x) = 2 Jᵢx for the linear part alone; its Jacobians average to it.
    opposite = len(spins) - 1
    linear = (jacobian[0] + jacobian[opposite]) / 2
    assert torch.allclose(grads[0] - grads[opposite], 2 * linear @ spins[0])


def table(answers):
    """A table of two spins from what Π answers at each, by hand."""
    spins = theorem._all_spins(2)
    numbers = {tuple(row): number for number, row in enumerate(spins.tolist())}
    return spins, torch.tensor([numbers[answers[tuple(row)]] for row in spins.tolist()])


def test_a_fixed_point_by_hand_is_found_reached_and_kept():
    # Π = −(1, 1) everywhere: all walks go to (1, 1), the only fixed point.
    spins, answer = table(dict.fromkeys(((1.0, 1.0), (-1.0, 1.0), (1.0, -1.0), (-1.0, -1.0)), (-1.0, -1.0)))
    first = torch.tensor([[-0.5, 0.5], [0.5, 0.5]], dtype=torch.float64)
    found = theorem._explore(spins, answer, first)
    assert found["fixed"] == 1 and found["stays"]
    for name in ("constant 0.1", "decay 0.1", "constant 1"):
        assert (found[name]["reached"], found[name]["began there"], found[name]["cycles"]) == (1.0, 0.5, 0.0)


def test_a_cycle_by_hand_is_found_with_its_length():
    # Π = s everywhere: every step goes back across zero.
    spins = theorem._all_spins(2)
    answer = torch.arange(4)
    fixed = torch.zeros(4, dtype=torch.bool)
    first = torch.full((3, 2), 0.35, dtype=torch.float64)
    found = theorem._walk(spins, answer, fixed, first, rate=0.1, decay="constant")
    assert found == {"reached": 0.0, "began there": 0.0, "cycles": 1.0, "length": 2.0}


def test_weights_chosen_by_qubos_fall_to_a_fixed_point_in_every_problem():
    for function in theorem.FUNCTIONS:
        for seed in range(4):
            found = explore(n=5, m=2, function=function, seed=seed, starts=2)["weights"]
            assert found["falls"] and found["ends"] and found["fixed"] > 0
            if function == "linear":  # the model is the loss: the best spins are reached in one step
                assert found["curvature"] == pytest.approx(1.0) and found["best"] == 1.0 and found["steps"] == 1


def test_weights_chosen_by_qubos_by_hand():
    # E = ½ (s − 3)²: from −1 the model has its lowest value at +1, where the gradient −2 points outwards.
    spins = theorem._all_spins(1)
    found = theorem._descended(spins, torch.ones(1, 1, 1).double(), spins - 3)
    assert found.pop("answer").tolist() == [0, 0]
    assert found == {"curvature": 1.0, "fixed": 1, "falls": True, "ends": True, "steps": 1, "best": 1.0}


def test_proposition_1_holds_for_one_output_and_for_orthogonal_rows_only():
    single = explore(n=4, m=1, function="linear", seed=0, starts=2)["proposition"]
    several = explore(n=4, m=3, function="linear", seed=0, starts=2)["proposition"]
    assert single["as it is"] < 1e-12 and several["orthogonal rows"] < 1e-12
    assert several["as it is"] > 0.01
    # By hand: rows (1, 0) and (1, 1) with v = (1, 0): the gradient is (1, 0), the relaxed map (1, −1).
    rows, v = torch.tensor([[1.0, 0.0], [1.0, 1.0]]), torch.tensor([1.0, 0.0])
    assert theorem._distance(rows, v) == pytest.approx(1.0)


def test_the_study_runs_from_end_to_end(tmp_path):
    study = FixedPointStudy(seeds=2, starts=4, sizes=((3, 1), (3, 4)))
    list(study.run(folder=tmp_path))
    summary = study.summary(folder=tmp_path)
    assert [table["title"].split(":")[0] for table in summary["tables"]] == [
        "Where a fixed point exists",
        "Problems with a fixed point",
        "Weights chosen by QUBOs (QuboDescent)",
        "Proposition 1",
    ]
    verdicts = {claim["text"]: claim["verdict"] for claim in summary["claims"]}
    assert verdicts["s is a fixed point if and only if −Π(∇E(s)) = s (as printed)"] == "yes"
    assert verdicts["Over the reals, Π returns the gradient, for every f"] == "no"
