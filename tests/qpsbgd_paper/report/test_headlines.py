import pytest

from qpsbgd_paper.report.headlines import headline


@pytest.fixture
def duel(make_row, make_experiment):
    """A function: the headline of an experiment in which our line and two baselines have these figures, by case."""

    def made(*cases, seeds=3, **others):
        def rows(ours, baseline):
            return [
                make_row("qpsbgd", "Ours", kind="ours", values=ours),
                make_row("qpsbgd-annealed", "Ours (annealed)", kind="variant", values=(0.99, 0.99, 0.99)[: len(ours)]),
                make_row("bc-sgd", "Theirs", values=baseline),
                make_row("bc-adam", "Weak", values=(0.1, 0.1, 0.1)[: len(ours)]),
            ]

        named = {f"case {k}": rows(*figures) for k, figures in enumerate(cases, 1)}
        return headline(make_experiment(named, seeds=seeds, **others))

    return made


HIGH, LOW, NOISY = (0.80, 0.81, 0.82), (0.60, 0.61, 0.62), (0.5, 0.8, 1.1)


def test_the_sentence_says_who_won(duel):
    assert duel((HIGH, LOW)) == ("Ours won.", "Ours 0.810 (won), best baseline Theirs 0.610.")
    assert duel((LOW, HIGH)) == ("Ours lost to the best baseline.", "Ours 0.610 (lost), best baseline Theirs 0.810.")
    assert duel((HIGH, NOISY))[0] == "Ours was level with the best baseline."


def test_every_form_has_its_say_but_no_other_solver(make_row, make_experiment):
    rows = [
        make_row("qpsbgd", "Spins", kind="ours", values=HIGH),
        make_row("qpsbgd-ridge", "Ridge", kind="ours", values=LOW),
        make_row("qpsbgd-printed", "As printed", kind="paper", values=(0.1, 0.1, 0.1)),
        make_row("qpsbgd-virtual", "As printed (chip)", kind="variant", values=(0.9, 0.9, 0.9)),
        make_row("bc-sgd", "Theirs", values=LOW),
    ]
    found = headline(make_experiment({"a": rows}, seeds=3))
    assert found.sentence == (
        "Spins won; Ridge was level with the best baseline; As printed lost to the best baseline."
    )
    assert (
        found.detail == "Spins 0.810 (won), Ridge 0.610 (level), As printed 0.100 (lost), best baseline Theirs 0.610."
    )


def test_a_lower_loss_wins(duel):
    metric = {"key": "score", "label": "loss", "higher": False}
    # The weak line has the lowest figure.
    found = duel((HIGH, LOW), metrics=[metric])
    assert found == ("Ours lost to the best baseline.", "Ours 0.810 (lost), best baseline Weak 0.100.")


def test_several_cases_are_counted_and_listed(duel):
    sentence, detail = duel((HIGH, LOW), (LOW, HIGH))
    assert sentence == "Ours won in one case and lost to the best baseline in the other."
    assert detail == (
        "Case 1: Ours 0.810 (won), best baseline Theirs 0.610; case 2: Ours 0.610 (lost), best baseline Theirs 0.810."
    )
    three = duel((HIGH, LOW), (LOW, HIGH), (HIGH, NOISY))
    assert three[0] == "Ours won in 1 of 3 cases, lost to the best baseline in 1 and was level with it in 1."
    assert duel((HIGH, LOW), (HIGH, LOW))[0] == "Ours won in both cases."
    assert duel(*3 * [(LOW, HIGH)])[0] == "Ours lost to the best baseline in all 3 cases."


def test_cases_of_one_setting_count_as_their_mean(make_row, make_experiment):
    def rows(ours):
        return [make_row("qpsbgd", "Ours", kind="ours", values=ours), make_row("bc-sgd", "Theirs", values=(0.7, 0.7))]

    labels = {
        ("0/2", "paper"): (0.9, 0.9),
        ("1/2", "paper"): (0.7, 0.7),
        ("0/2", "long"): (0.5, 0.5),
        ("1/2", "long"): (0.6, 0.6),
    }
    found = headline(make_experiment({label: rows(values) for label, values in labels.items()}))
    assert found.sentence == "Ours won in one case and lost to the best baseline in the other."
    assert found.detail.startswith(
        "Paper (mean of 2): Ours 0.800 (won), best baseline Theirs 0.700; long (mean of 2): Ours"
    )


def test_with_one_seed_nothing_is_won(duel):
    sentence, detail = duel(((0.9,), (0.1,)), seeds=1)
    assert sentence == "Ours was level with the best baseline."
    assert detail.endswith("With one seed the noise is unknown, so nothing counts as won or lost.")


def test_what_diverged_has_lost(duel):
    assert duel(((0.9, None, 0.9), LOW))[1] == "Ours diverged (lost), best baseline Theirs 0.610."
    assert duel((LOW, (None, 0.9, 0.9)))[1] == "Ours 0.610 (won), best baseline Weak 0.100."


def test_ours_wins_where_every_baseline_diverged_and_nobody_where_all_did(make_row, make_experiment):
    def found(ours):
        rows = [make_row("qpsbgd", "Ours", kind="ours", values=ours), make_row("bc-sgd", "Theirs", values=(None, None))]
        return headline(make_experiment({"a": rows}))

    assert found((0.5, 0.5)) == ("Ours won.", "Ours 0.500 (won), best baseline Theirs diverged.")
    assert found((0.5, None)).sentence == "Ours was level with the best baseline."


def test_among_our_own_lines_the_best_is_named(make_row, make_experiment):
    rows = [
        make_row(f"lr {rate}", f"lr {rate}", kind="ours", values=values)
        for rate, values in ((1, (0.5, 0.7)), (2, (0.6, 0.7)))
    ]
    sure = [make_row(name, name, kind="ours", values=values) for name, values in (("a", (1, 1)), ("b", (None, 2)))]
    found = headline(make_experiment({"rate": rows, "kind": sure}))
    assert found.sentence == (
        "Rate: lr 2 was best, within noise of the next (0.650 against 0.600 for lr 1); "
        "kind: a was best (1.000 against diverged for b)."
    )


def test_without_figures_the_claims_are_counted(study):
    assert headline(study).sentence == "The claim holds here."
    claims = [{"text": "", "verdict": verdict} for verdict in ("yes", "yes", "no", "cannot tell", "cannot tell")]
    assert headline({**study, "claims": claims}).sentence == "Of 5 claims, 2 hold, 1 does not and 2 cannot be told."
    assert headline({**study, "claims": claims[:2]}).sentence == "Both claims hold here."
    found = [headline({**study, "claims": [claim]}).sentence for claim in claims[1:4]]
    assert found == ["The claim holds here.", "The claim does not hold here.", "The experiment cannot tell."]
    assert headline({**study, "claims": []}) == ("", "")
    assert headline({**study, "claims": 2 * [{"text": "", "verdict": "who knows"}]}) == ("", "")
