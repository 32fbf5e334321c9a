import pytest

from qpsbgd_paper.framework.claims import Claim, half_interval, judged, paired, stated
from qpsbgd_paper.framework.claims import verdict as verdict_on

HIGHER = {"accuracy": True, "loss": False}


def verdict(ours, *others, metric="accuracy", **options):
    values = {("x", "ours", metric): ours} | {("x", f"other{i}", metric): v for i, v in enumerate(others)}
    against = tuple(f"other{i}" for i in range(len(others)))
    return judged(Claim("text", "ours", metric, ("x",), against, **options), values, HIGHER)["verdict"]


def test_a_difference_in_all_pairs_is_a_yes_or_a_no():
    assert verdict([0.9, 0.91], [0.8, 0.81]) == "yes"
    assert verdict([0.8, 0.81], [0.9, 0.91]) == "no"


def test_what_pairs_share_is_no_noise():
    # The seeds differ by far more than the lines.
    ours, theirs = [0.51, 0.71, 0.90], [0.50, 0.70, 0.89]
    assert verdict(ours, theirs) == "yes"
    assert verdict(ours, theirs[::-1]) == "within noise"


def test_a_difference_smaller_than_its_interval_is_within_noise():
    # Differences 1, 2, 3: mean 2, standard error 1/√3, times Student's 4.303 for three pairs: 2.48. Closer: 1.24.
    assert verdict([1.0, 2.0, 3.0], [0.0, 0.0, 0.0]) == "within noise"
    assert verdict([1.5, 2.0, 2.5], [0.0, 0.0, 0.0]) == "yes"


def test_a_difference_of_rounding_errors_is_within_noise():
    assert verdict([0.3, 0.3], [0.1 + 0.2, 0.1 + 0.2]) == "within noise"


def test_lower_is_better_for_a_loss():
    assert verdict([0.1, 0.11], [0.5, 0.51], metric="loss") == "yes"


def test_the_rival_is_the_best_of_the_others():
    assert verdict([0.9, 0.91], [0.8, 0.81], [0.95, 0.96]) == "no"


def test_at_least_as_good_needs_a_mean_that_is_no_worse():
    assert verdict([0.8, 0.9], [0.75, 0.85], relation="at least") == "yes"
    assert verdict([0.8, 0.9], [0.8, 0.9], relation="at least") == "yes"
    assert verdict([0.75, 0.85], [0.8, 0.81], relation="at least") == "within noise"
    assert verdict([0.9], [0.1], relation="at least") == "within noise"
    assert verdict([0.5, 0.51], [0.8, 0.81], relation="at least") == "no"


def test_level_means_no_difference_either_way():
    assert verdict([0.8, 0.9], [0.85, 0.86], relation="level") == "yes"
    assert verdict([0.8, 0.9], [0.7, 0.8], relation="level") == "no"
    assert verdict([0.8, 0.9], [0.9, 1.0], relation="level") == "no"
    assert verdict([0.9], [0.9], relation="level") == "within noise"
    assert verdict([0.9, None], [0.9, 0.9], relation="level") == "no"


def test_worse_is_worse_than_the_worst():
    assert verdict([0.1, 0.11], [0.5, 0.51], [0.8, 0.81], relation="worse") == "yes"
    assert verdict([0.6, 0.61], [0.5, 0.51], [0.8, 0.81], relation="worse") == "no"


@pytest.mark.parametrize(("level", "expected"), [(0.85, "yes"), (0.86, "no")])
def test_a_level_is_reached_by_the_mean(level, expected):
    assert verdict([0.8, 0.9], level=level) == expected


def test_several_cases_are_averaged_seed_by_seed():
    values = {("x", "a", "accuracy"): [0.2, 0.4], ("y", "a", "accuracy"): [0.8, 0.6]}
    values |= {("x", "b", "accuracy"): [0.4, 0.4], ("y", "b", "accuracy"): [0.4, 0.4]}
    found = judged(Claim("text", "a", "accuracy", ("x", "y"), ("b",)), values, HIGHER)
    assert found["verdict"] == "yes"  # 0.5 for both seeds: no spread
    assert found["cases"] == ["x", "y"]


def test_one_seed_decides_nothing():
    assert verdict([0.9], [0.1]) == "within noise"


@pytest.mark.parametrize(("metric", "good"), [("accuracy", 0.9), ("loss", 0.1)])
def test_a_figure_that_is_not_finite_counts_as_worst(metric, good):
    fine, diverged = [good, good], [good, None]
    assert verdict(diverged, fine, metric=metric) == "no"
    assert verdict(fine, diverged, metric=metric) == "yes"
    assert verdict(diverged, fine, metric=metric, relation="worse") == "yes"
    assert verdict(fine, diverged, metric=metric, relation="at least") == "yes"
    assert verdict(diverged, fine, metric=metric, relation="at least") == "no"
    assert verdict(diverged, diverged, metric=metric) == "within noise"
    assert verdict(diverged, metric=metric, level=0.5) == "no"
    # Of two rivals, the one that did not diverge is to be beaten.
    assert verdict([good, good], diverged, fine, metric=metric) == "within noise"


def test_a_difference_beyond_the_noise_has_a_sign():
    assert [verdict_on(d, noise=1.0) for d in (1.5, -1.5, 0.5, 1.0, float("nan"))] == [
        *("yes", "no", "within noise", "within noise", "within noise")
    ]


def test_half_of_the_interval_by_hand():
    # Deviation √2 of two values: standard error 1, Student's t for one degree of freedom.
    assert half_interval([1.0, 3.0]) == pytest.approx(12.71)
    # Deviation 1 of three values: standard error 1/√3, two degrees of freedom.
    assert half_interval([1.0, 2.0, 3.0]) == pytest.approx(4.303 / 3**0.5)
    many = [0.0, 2.0] * 50
    assert half_interval(many) == pytest.approx(2.042 * (100 / 99) ** 0.5 / 10)
    assert half_interval([1.0]) == float("inf")


def test_the_quantiles_are_students():
    stats = pytest.importorskip("scipy.stats")
    deviations = {n: [0.0] * (n - 1) + [float(n)] for n in range(2, 40)}  # their standard error is 1
    for n, values in deviations.items():
        assert half_interval(values) == pytest.approx(stats.t.ppf(0.975, min(n - 1, 30)), rel=1e-3)


def test_pairs_are_compared_by_their_differences():
    found = paired("text", [101.0, 2.0, 1.5], [100.0, 1.0, 0.0])
    assert (found["verdict"], found["source"]) == ("yes", "aim")
    assert found["detail"] == "34.83 against 33.67, difference +1.2 ± 0.72 (paired)"
    assert paired("text", [100.0, 0.0], [101.0, 1.0])["verdict"] == "no"
    assert paired("text", [1.0, 0.0], [0.0, 1.0])["verdict"] == "within noise"
    assert paired("text", [1.0], [0.0])["verdict"] == "within noise"


def test_a_statement_holds_or_not():
    assert stated("text", True, "why") == {"text": "text", "source": "paper", "verdict": "yes", "detail": "why"}
    assert stated("text", False, "why", source="aim")["verdict"] == "no"
    assert stated("text", "within noise", "why")["verdict"] == "within noise"
