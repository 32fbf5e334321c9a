import json
from dataclasses import dataclass, replace

import pytest

from qpsbgd_paper.framework.claims import Claim
from qpsbgd_paper.framework.comparison import FINALIST_SEEDS, FINALISTS, Case, Comparison, Metric, Series
from qpsbgd_paper.framework.methods import Line, extend, rates

calls = []


def work(*, case, line, options, seed, choosing, length, diverges):
    calls.append((case, line, options["lr"], seed, choosing))
    if options["lr"] == diverges:
        return {"score": float("nan"), "curve": [float("inf")] * length, "note": seed}
    # The best rate in the runs that choose is 2; in the final runs it would be 3.
    score = -abs(options["lr"] - (2 if choosing else 3)) + 0.01 * (seed % 3)
    return {"score": score, "curve": [score * x for x in range(length)], "note": seed}


@dataclass(frozen=True)
class Toy(Comparison):
    name = "toy"
    title = "Toy"
    about = "A toy."
    paper = "Figure: a is best."
    metrics = (Metric("score", "score"),)
    series = (Series("curve", "score"),)
    chosen_by = metrics[0]
    extra = ("note",)
    seeds: int = 3
    choosing_seeds: int = 2
    length: int = 5
    diverges: float = 0.0
    rates: tuple[float, ...] = (1.0, 2.0, 3.0)

    def cases(self):
        return [Case("x", reported={"a": 0.5}), Case("y", group="s", short="z")]

    def lines(self, case):
        return {"a": Line("A", "none", rates(*self.rates), "ours"), "b": Line("B", "none", rates(7.0))}

    def job(self, case, line, options):
        return {"options": options, "length": self.length, "diverges": self.diverges}

    @property
    def work(self):
        return work

    def quick(self):
        return replace(self, choosing_seeds=0)

    def claims(self):
        return [Claim("A is best", "a", "score", ("x", "y"), ("b",))]


@pytest.fixture
def summary(tmp_path):
    calls.clear()
    list(Toy().run(folder=tmp_path))
    return Toy().summary(folder=tmp_path)


def test_a_claim_about_a_line_that_is_not_there_is_refused_before_anything_runs(tmp_path):
    class Claimed(Toy):
        def claims(self):
            return [Claim("A is best", "a", "score", ("x", "y"), ("b", "c"))]

    calls.clear()
    with pytest.raises(ValueError, match=r"toy: a claim must be about .* 'A is best' is about \('x', 'c'\)"):
        list(Claimed().run(folder=tmp_path))
    assert not calls


def rows(summary, case=0):
    return {row["line"]: row for row in summary["cases"][case]["rows"]}


def test_options_are_chosen_in_runs_of_their_own_with_other_seeds(summary):
    assert rows(summary)["a"]["options"] == {"lr": 2.0}
    chosen_on = {seed for *_, seed, choosing in calls if choosing}
    scored_on = {seed for *_, seed, choosing in calls if not choosing}
    assert not chosen_on & scored_on
    assert scored_on == {0, 1, 2}


def work_with_luck(*, case, line, options, seed, choosing, length, diverges):
    # On the first two seeds that choose, 4 looks best; on ten it is 2.
    luck = 9.0 if options["lr"] == 4 and seed in (1000, 1001) else 0.0
    return {"score": luck - abs(options["lr"] - 2), "curve": [0.0], "note": seed}


@dataclass(frozen=True)
class Lucky(Toy):
    rates: tuple[float, ...] = (0.5, 1.0, 2.0, 4.0, 8.0, 16.0)

    def lines(self, case):
        grid = (*rates(*self.rates, kind="a"), *rates(4.0, 8.0, 16.0, kind="b"))
        like = Line("C", "none", ({"solver": "other"},), "variant", like="a", only={"kind": "b"})
        return {"a": Line("A", "none", grid, "ours"), "b": Line("B", "none", rates(7.0)), "c": like}

    @property
    def work(self):
        return work_with_luck


def test_the_best_options_on_two_seeds_are_compared_again_on_ten(tmp_path):
    list(Lucky().run(folder=tmp_path))
    found = Lucky().summary(folder=tmp_path)
    assert rows(found)["a"]["options"] == {"lr": 2.0, "kind": "a"}
    assert found["chosen on"] == [2, FINALIST_SEEDS]


def test_a_line_like_another_takes_the_best_of_its_points_that_it_may_take_and_adds_its_own(tmp_path):
    list(Lucky().run(folder=tmp_path))
    chosen = rows(Lucky().summary(folder=tmp_path))["c"]["options"]
    assert chosen == {"lr": 4.0, "kind": "b", "solver": "other"}
    assert not [call for call in calls if call[1] == "c" and call[-1]]


def work_of_two_halves(*, case, line, options, seed, choosing, length, diverges):
    # The first half of a setting is best at 1, the second at 2.5; their mean is best at 2.
    best = {"first": 1.0, "second": 2.5}[case]
    return {"score": -((options["lr"] - best) ** 2), "curve": [0.0], "note": seed}


@dataclass(frozen=True)
class Halves(Toy):
    def cases(self):
        return [Case("first", group="both"), Case("second", group="both")]

    @property
    def work(self):
        return work_of_two_halves

    def claims(self):
        return []


def test_the_cases_of_a_group_have_the_same_options_chosen_on_their_mean(tmp_path):
    list(Halves().run(folder=tmp_path))
    summary = Halves().summary(folder=tmp_path)
    assert [rows(summary, case)["a"]["options"] for case in (0, 1)] == [{"lr": 2.0}] * 2


def test_all_seeds_and_the_reported_figure_are_in_the_summary(summary):
    row = rows(summary)["a"]
    assert row["values"]["score"] == pytest.approx([-1, -0.99, -0.98])
    assert row["extra"]["note"] == [0, 1, 2]
    assert row["reported"] == 0.5
    assert rows(summary)["b"]["reported"] is None
    assert json.loads(json.dumps(summary)) == summary | {"metrics": summary["metrics"]}


def test_a_grid_whose_best_rate_is_at_its_edge_is_extended_until_it_is_not(tmp_path):
    toy = Toy(rates=(0.1, 0.3))
    calls.clear()
    events = list(toy.run(folder=tmp_path))
    row = rows(toy.summary(folder=tmp_path))["a"]
    # The best rate in the runs that choose is 2; of those tried, 2.7 is nearest.
    assert row["grid"] == [[{"lr": 0.1}, {"lr": 0.3}], [{"lr": 0.9}, {"lr": 2.7}]]
    assert row["options"] == {"lr": 2.7}
    assert events[-1][1] == events[-1][2] == 2 * (4 * 2 + FINALISTS * (FINALIST_SEEDS - 2)) + 2 * 2 * 3
    done = [done for _, done, _ in events]
    assert done == sorted(done)
    calls.clear()
    list(toy.run(folder=tmp_path))
    assert not calls, "an extended grid is found again"


def test_the_next_rate_lies_beyond_the_edge_of_the_same_other_options():
    grid = rates(0.1, 0.3, momentum=0.9) + rates(1.0, momentum=0.0)
    assert extend(grid, grid[0]) == (*grid, {"lr": 0.033, "momentum": 0.9})
    assert extend(grid, grid[1]) == (*grid, {"lr": 0.9, "momentum": 0.9})
    assert extend(grid, grid[2]) == grid, "a rate that stands alone is meant"
    three = rates(1.0, 2.0, 3.0)
    assert extend(three, three[1]) == three
    assert extend(({},), {}) == ({},)


def test_a_summary_never_trains(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"12 of 12 runs of toy .* `qpsbgd run toy`"):
        Toy().summary(folder=tmp_path)
    every = Toy().run(folder=tmp_path / "whole")
    choosing = max(done for phase, done, _ in every if phase == "choosing options")
    events = Toy().run(folder=tmp_path)
    while next(events)[1] < choosing:
        pass
    calls.clear()
    with pytest.raises(FileNotFoundError, match=r"12 of 12 runs of toy are not in"):
        Toy().summary(folder=tmp_path)
    assert calls == []


def test_a_diverged_run_is_shown_as_such_counts_as_worst_and_is_never_chosen(tmp_path):
    toy = Toy(diverges=2.0)
    list(toy.run(folder=tmp_path))
    summary = json.loads(json.dumps(toy.summary(folder=tmp_path), allow_nan=False))
    assert rows(summary)["a"]["options"] == {"lr": 1.0}, "at 2 it would be best"
    toy = Toy(diverges=7.0)
    list(toy.run(folder=tmp_path))
    summary = json.loads(json.dumps(toy.summary(folder=tmp_path), allow_nan=False))
    row = rows(summary)["b"]
    assert row["values"]["score"] == [None] * 3
    assert row["curves"]["curve"]["mean"] == row["curves"]["curve"]["deviation"] == [None] * 5
    (claim,) = summary["claims"]
    assert (claim["verdict"], claim["rival"]) == ("yes", "b")
    assert "not finite" in claim["detail"]
