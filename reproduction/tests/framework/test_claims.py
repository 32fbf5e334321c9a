import pytest

from qpsbgd_paper.framework.claims import Claim, Difference, equivalent, judge, judge_pairs

HIGHER = {"accuracy": True, "loss": False}


def verdict(ours, *others, metric="accuracy", control=None, **options):
    values = {("x", "ours", metric): ours} | {("x", f"other{i}", metric): v for i, v in enumerate(others)}
    against = tuple(f"other{i}" for i in range(len(others)))
    values |= {("x", "control", metric): control} if control is not None else {}
    claim = Claim("text", "ours", metric, ("x",), against, **options)
    return judge(claim, values, HIGHER, controls=("control",))["verdict"]


def test_a_difference_in_all_pairs_is_a_yes_or_a_no():
    assert verdict([0.9, 0.91], [0.8, 0.81]) == "yes"
    assert verdict([0.8, 0.81], [0.9, 0.91]) == "no"


def test_what_pairs_share_is_no_noise():
    # The seeds differ by far more than the lines.
    ours, theirs = [0.51, 0.71, 0.90], [0.50, 0.70, 0.89]
    assert verdict(ours, theirs) == "yes"
    assert verdict(ours, theirs[::-1]) == "cannot tell"


def test_a_difference_smaller_than_its_interval_is_within_noise():
    # Differences 1, 2, 3: mean 2, standard error 1/√3, times Student's 4.303 for three pairs: 2.48. Closer: 1.24.
    assert verdict([1.0, 2.0, 3.0], [0.0, 0.0, 0.0]) == "cannot tell"
    assert verdict([1.5, 2.0, 2.5], [0.0, 0.0, 0.0]) == "yes"


def test_at_least_as_good_is_shown_by_a_difference_within_the_margin():
    same = {"relation": "at least", "margin": 0.02}
    assert verdict([0.8, 0.9], [0.75, 0.85], **same) == "yes"
    assert verdict([0.8, 0.9], [0.81, 0.91], **same) == "yes"  # a difference of −0.01 without any spread
    assert verdict([0.75, 0.85], [0.8, 0.81], **same) == "cannot tell"
    assert verdict([0.9], [0.1], **same) == "cannot tell"
    assert verdict([0.5, 0.51], [0.8, 0.81], **same) == "no"


def test_level_is_shown_by_an_equivalence_test_and_not_by_noise():
    same = {"relation": "level", "margin": 0.02}
    assert verdict([0.8, 0.9], [0.85, 0.86], **same) == "cannot tell"  # low power is no yes
    assert verdict([0.8, 0.9], [0.805, 0.895], **same) == "cannot tell"  # ± 0.032 at 95 % on each side
    assert verdict([0.8, 0.9], [0.801, 0.899], **same) == "yes"
    assert verdict([0.8, 0.9], [0.79, 0.89], **same) == "yes"  # significant, and within the margin
    assert verdict([0.8, 0.9], [0.7, 0.8], **same) == "no"
    assert verdict([0.8, 0.9], [0.9, 1.0], **same) == "no"
    assert verdict([0.9], [0.9], **same) == "cannot tell"
    assert verdict([0.9, None], [0.9, 0.9], **same) == "no"


def test_a_winner_that_does_not_beat_the_control_decides_nothing():
    ours, theirs = [0.9, 0.91], [0.8, 0.81]
    assert verdict(ours, theirs, control=[0.1, 0.2]) == "yes"
    assert verdict(ours, theirs, control=[0.9, 0.91]) == "yes", "the loser is behind the control"
    assert verdict(ours, theirs, control=[0.81, 0.9]) == "cannot tell"
    assert verdict(theirs, ours, control=[0.81, 0.9]) == "cannot tell"
    assert verdict(theirs, ours, control=[0.1, 0.11]) == "no"
    assert verdict(ours, ours, relation="level", margin=0.02, control=[0.9, 0.91]) == "cannot tell"
    assert verdict(ours, ours, relation="level", margin=0.02, control=[0.1, 0.11]) == "yes"
    assert verdict(ours, level=0.5, control=[0.9, 0.91]) == "cannot tell"


def test_the_seeds_that_would_be_needed_are_named():
    values = {("x", "ours", "accuracy"): [0.9, 0.8, 0.7], ("x", "b", "accuracy"): [0.7, 0.7, 0.7]}
    found = judge(Claim("text", "ours", "accuracy", ("x",), ("b",)), values, HIGHER)
    # Differences 0.2, 0.1, 0: mean 0.1, deviation 0.1: (1.96 + 0.842)² = 7.9, and two more.
    assert found["verdict"] == "cannot tell" and found["detail"].endswith("; 10 seeds needed")
    same = judge(Claim("text", "ours", "accuracy", ("x",), ("ours",)), values, HIGHER)
    assert same["detail"].endswith("; more than 10000 seeds needed")


@pytest.mark.parametrize(("mean", "seeds"), [(1.0, 10), (0.5, 34), (0.2, 199), (0.02, None), (0.0, None), (50.0, 4)])
def test_the_seeds_needed_are_those_of_tables_of_the_t_test(mean, seeds):
    # Two-sided 5 %, power 80 %, paired differences of deviation 1; never as few as there were.
    assert Difference(mean, 1.0, 3, 0.0).seeds == seeds


def test_what_the_paper_says_of_an_annealer_was_not_run_on_hardware():
    values = {("x", "ours", "accuracy"): [0.9, 0.91], ("x", "b", "accuracy"): [0.8, 0.81]}
    found = judge(Claim("text", "ours", "accuracy", ("x",), ("b",), hardware=True), values, HIGHER)
    assert found["verdict"] == "not run on hardware"
    assert found["detail"].startswith("on the virtual QPU yes: ")


def test_worse_is_worse_than_the_worst():
    assert verdict([0.1, 0.11], [0.5, 0.51], [0.8, 0.81], relation="worse") == "yes"
    assert verdict([0.6, 0.61], [0.5, 0.51], [0.8, 0.81], relation="worse") == "no"


@pytest.mark.parametrize(("level", "expected"), [(0.85, "yes"), (0.86, "no")])
def test_a_level_is_reached_by_the_mean(level, expected):
    assert verdict([0.8, 0.9], level=level) == expected


def test_several_cases_are_averaged_seed_by_seed():
    values = {("x", "a", "accuracy"): [0.2, 0.4], ("y", "a", "accuracy"): [0.8, 0.6]}
    values |= {("x", "b", "accuracy"): [0.4, 0.4], ("y", "b", "accuracy"): [0.4, 0.4]}
    found = judge(Claim("text", "a", "accuracy", ("x", "y"), ("b",)), values, HIGHER)
    assert found["verdict"] == "yes"  # 0.5 for both seeds: no spread
    assert found["cases"] == ["x", "y"]


@pytest.mark.parametrize(("metric", "good"), [("accuracy", 0.9), ("loss", 0.1)])
def test_a_figure_that_is_not_finite_counts_as_worst(metric, good):
    fine, diverged = [good, good], [good, None]
    assert verdict(diverged, fine, metric=metric) == "no"
    assert verdict(fine, diverged, metric=metric) == "yes"
    assert verdict(diverged, fine, metric=metric, relation="worse") == "yes"
    assert verdict(fine, diverged, metric=metric, relation="at least") == "yes"
    assert verdict(diverged, fine, metric=metric, relation="at least") == "no"
    assert verdict(diverged, diverged, metric=metric) == "cannot tell"
    assert verdict(diverged, metric=metric, level=0.5) == "no"
    # Of two rivals, the one that did not diverge is to be beaten.
    assert verdict([good, good], diverged, fine, metric=metric) == "cannot tell"


def test_two_lines_are_level_where_the_90_percent_interval_lies_inside_of_the_margin():
    gap = Difference(0.0, 3**0.5, 3, 0.0)  # a standard error of 1, two degrees of freedom
    assert equivalent(gap, margin=2.921, one_sided=False)[0] == "yes"
    assert equivalent(gap, margin=2.919, one_sided=False)[0] == "cannot tell"


def test_pairs_are_compared_by_their_differences():
    found = judge_pairs("text", [101.0, 2.0, 1.5], [100.0, 1.0, 0.0])
    assert (found["verdict"], found["source"]) == ("yes", "aim")
    assert found["detail"] == "34.83 against 33.67, difference +1.2 ± 0.72 (paired)"
    assert judge_pairs("text", [100.0, 0.0], [101.0, 1.0])["verdict"] == "no"
    assert judge_pairs("text", [1.0, 0.0], [0.0, 1.0])["verdict"] == "cannot tell"
    assert judge_pairs("text", [1.0], [0.0])["verdict"] == "cannot tell"
