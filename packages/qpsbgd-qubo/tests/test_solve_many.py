import os
import signal
import sys
import threading

import numpy as np
import pytest

from qpsbgd_qubo import QuboFamily, solve, solve_many
from qpsbgd_qubo.solvers import make_solver
from qpsbgd_qubo.testing import random_family


def unlike_problems(count, largest=9):
    """QUBOs of different sizes as dicts, with integers."""
    generator = np.random.default_rng(0)
    sizes = generator.integers(2, largest + 1, count)
    return [{(i, j): int(generator.integers(-9, 10)) for i in range(n) for j in range(i, n)} for n in sizes]


def values(answers):
    return [answer.value for answer in answers]


@pytest.mark.parametrize("solver", ["auto", "exact", "descent"])
def test_many_problems_of_any_form_are_answered_as_one_by_one_and_in_order(solver, write):
    problems = [
        {("a", "b"): 2, ("a", "a"): -1},
        np.array([[-3.0, 1.0, 0.0], [1.0, 2.0, -4.0], [0.0, 0.0, 1.0]]),
        str(write("problem.coo", "0 0 -1\n0 1 2\n2 2 -3\n")),
        QuboFamily([[0.0, 1.0], [1.0, 0.0]], [[1.0], [0.5]]),
        *unlike_problems(12),
    ]
    answers = solve_many(problems, solver=solver)
    expected = [solve(problem, solver=solver) for problem in problems]
    assert values(answers) == values(expected)
    assert [answer.values for answer in answers] == [answer.values for answer in expected]
    assert solve_many([]) == []


def test_a_wrong_problem_is_refused_before_any_search():
    with pytest.raises(TypeError, match="a problem must be"):
        solve_many([{("a", "a"): 1}, 3])


def chip(**options):
    pytest.importorskip("dwave.system", reason="needs dwave")
    return make_solver("virtual-qpu", **{"size": 4, "num_reads": 20, **options})


def test_many_unlike_problems_are_one_submission_and_each_gets_its_own_answer(cache):
    problems, solver = unlike_problems(12), chip(cache=cache)
    answers = solve_many(problems, solver=solver)
    assert solver.submissions == 1
    assert values(answers) == values(solve_many(problems, solver="exact"))
    assert [len(answer.values) for answer in answers] == [1 + max(j for _, j in problem) for problem in problems]


def test_sizes_that_share_larger_cliques_are_answered_alike(tmp_path, monkeypatch):
    from qpsbgd_qubo.annealers import chip_solver

    problems = unlike_problems(8)
    monkeypatch.setattr(chip_solver, "OWN_TILES", 0)
    solver = chip(cache=tmp_path)
    assert values(solve_many(problems, solver=solver)) == values(solve_many(problems, solver="exact"))
    names = {path.stem.rpartition("n")[2] for path in tmp_path.iterdir()}
    assert names <= {str(size) for size in chip_solver.SHARED_TILES}


def test_a_budget_holds_for_all_problems_together(cache):
    from qpsbgd_qubo.annealers.budget import BudgetSpent

    solver = chip(cache=cache, max_qpu_seconds=0.02)
    assert len(solve_many(unlike_problems(3), solver=solver)) == 3
    with pytest.raises(BudgetSpent, match="nothing was sent"):
        solve_many(unlike_problems(3), solver=solver)
    assert solver.submissions == 1


def test_a_recording_answers_many_problems_again(cache, tmp_path):
    problems, record = unlike_problems(4), tmp_path / "many.chip"
    first = solve_many(problems, solver=chip(cache=cache, record=record))
    again = solve_many(problems, solver="replay", path=record)
    assert [answer.values for answer in again] == [answer.values for answer in first]


@pytest.mark.skipif(sys.platform == "win32", reason="Windows delivers Ctrl-C otherwise")
def test_columns_that_ctrl_c_leaves_without_a_round_are_not_blamed_on_the_time_limit():
    family = random_family(300, 40, 300, scale=0.1)
    timer = threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT))
    timer.start()
    answer = solve(family, time_limit=600, until_interrupted=True)  # a warning would be an error here
    timer.join()
    assert answer.stats["interrupted"] and not answer.proven_optimal.any()


@pytest.mark.skipif(sys.platform == "win32", reason="Windows delivers Ctrl-C otherwise")
@pytest.mark.parametrize("until_interrupted", [True, False])
def test_ctrl_c_ends_all_searches(until_interrupted):
    problems = [random_family(300, 1, 300, scale=0.1, seed=seed) for seed in range(6)]
    options = {"solver": "descent", "tabu": 2**40, "until_interrupted": until_interrupted}
    timer = threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT))
    timer.start()
    if until_interrupted:
        answers = solve_many(problems, **options)
        assert len(answers) == 6 and all(answer.stats["interrupted"] for answer in answers)
        assert solve({("a", "a"): 1}, until_interrupted=True).stats["interrupted"] is False
    else:
        with pytest.raises(KeyboardInterrupt):
            solve_many(problems, **options)
    timer.join()
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_all_may_be_maximised():
    problems = unlike_problems(3)
    assert values(solve_many(problems, maximize=True)) == [solve(each, maximize=True).value for each in problems]
