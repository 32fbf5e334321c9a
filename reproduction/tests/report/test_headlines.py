import pytest

from qpsbgd_paper.report.headlines import headline, outcomes


def results(experiment):
    """Who met whom with which figures, per setting and form."""
    return [tuple(one) for one in outcomes(experiment)]


@pytest.fixture
def duel(make_row, make_experiment):
    """A function: an experiment in which our line and two baselines have these figures, by case."""

    def made(*cases, seeds=3, **others):
        def rows(ours, baseline):
            return [
                make_row("qpsbgd", "Ours", kind="ours", values=ours),
                make_row("qpsbgd-annealed", "Ours (annealed)", kind="variant", values=(0.99, 0.99, 0.99)[: len(ours)]),
                make_row("bc-sgd", "Theirs", values=baseline),
                make_row("bc-adam", "Weak", values=(0.1, 0.1, 0.1)[: len(ours)]),
            ]

        named = {f"case {k}": rows(*figures) for k, figures in enumerate(cases, 1)}
        return make_experiment(named, seeds=seeds, **others)

    return made


HIGH, LOW, NOISY = (0.80, 0.81, 0.82), (0.60, 0.61, 0.62), (0.5, 0.8, 1.1)


def test_the_better_mean_wins_unless_noise_decides(duel):
    assert results(duel((HIGH, LOW))) == [("", "qpsbgd", "won", "0.810", "bc-sgd", "0.610")]
    assert results(duel((LOW, HIGH))) == [("", "qpsbgd", "lost", "0.610", "bc-sgd", "0.810")]
    assert results(duel((HIGH, NOISY))) == [("", "qpsbgd", "cannot tell", "0.810", "bc-sgd", "0.800")]


@pytest.mark.parametrize(
    ("ours", "theirs", "outcome"), [(HIGH, LOW, "won"), (LOW, HIGH, "lost"), (HIGH, NOISY, "could not be told")]
)
def test_the_sentence_names_our_line_and_the_outcome(duel, ours, theirs, outcome):
    sentence = headline(duel((ours, theirs)))
    assert sentence.startswith("Ours") and outcome in sentence
    assert "level" not in sentence  # which needs an equivalence test


def test_every_form_has_its_say_but_no_other_solver(make_row, make_experiment):
    rows = [
        make_row("qpsbgd", "Spins", kind="ours", values=HIGH),
        make_row("qpsbgd-ridge", "Ridge", kind="ours", values=LOW),
        make_row("qpsbgd-printed", "As printed", kind="paper", values=(0.1, 0.1, 0.1)),
        make_row("qpsbgd-virtual", "As printed (chip)", kind="variant", values=(0.9, 0.9, 0.9)),
        make_row("bc-sgd", "Theirs", values=LOW),
    ]
    experiment = make_experiment({"a": rows}, seeds=3)
    found = [(line, outcome, mean) for _, line, outcome, mean, *_ in results(experiment)]
    assert found == [
        ("qpsbgd", "won", "0.810"),
        ("qpsbgd-ridge", "cannot tell", "0.610"),
        ("qpsbgd-printed", "lost", "0.100"),
    ]
    text = headline(experiment)
    assert text.index("Spins") < text.index("Ridge") < text.index("As printed") and "chip" not in text


def test_a_lower_loss_wins(duel):
    metric = {"key": "score", "label": "loss", "higher": False}
    # The weak line has the lowest figure.
    assert results(duel((HIGH, LOW), metrics=[metric])) == [("", "qpsbgd", "lost", "0.810", "bc-adam", "0.100")]


def test_several_cases_are_counted(duel):
    three = duel((HIGH, LOW), (LOW, HIGH), (HIGH, NOISY))
    assert [one[:3] for one in results(three)] == [
        ("case 1", "qpsbgd", "won"),
        ("case 2", "qpsbgd", "lost"),
        ("case 3", "qpsbgd", "cannot tell"),
    ]
    assert "1 of 3 cases" in headline(three)
    assert "both" in headline(duel((HIGH, LOW), (HIGH, LOW)))
    assert "all 3" in headline(duel(*3 * [(LOW, HIGH)]))


def test_cases_of_one_setting_count_as_their_mean(make_row, make_experiment):
    def rows(ours):
        return [make_row("qpsbgd", "Ours", kind="ours", values=ours), make_row("bc-sgd", "Theirs", values=(0.7, 0.7))]

    labels = {
        ("0/2", "paper"): (0.9, 0.9),
        ("1/2", "paper"): (0.7, 0.7),
        ("0/2", "long"): (0.5, 0.5),
        ("1/2", "long"): (0.6, 0.6),
    }
    found = results(make_experiment({label: rows(values) for label, values in labels.items()}))
    assert [(setting, outcome, mean) for setting, _, outcome, mean, *_ in found] == [
        ("paper (mean of 2)", "won", "0.800"),
        ("long (mean of 2)", "lost", "0.550"),
    ]


def test_with_one_seed_nothing_is_won(duel):
    experiment = duel(((0.9,), (0.1,)), seeds=1)
    assert [one.outcome for one in outcomes(experiment)] == ["cannot tell"]
    assert "one seed" in headline(experiment)


def test_what_diverged_has_lost(duel):
    assert results(duel(((0.9, None, 0.9), LOW))) == [("", "qpsbgd", "lost", "diverged", "bc-sgd", "0.610")]
    assert results(duel((LOW, (None, 0.9, 0.9)))) == [("", "qpsbgd", "won", "0.610", "bc-adam", "0.100")]


def test_ours_wins_where_every_baseline_diverged_and_nobody_where_all_did(make_row, make_experiment):
    def found(ours):
        rows = [make_row("qpsbgd", "Ours", kind="ours", values=ours), make_row("bc-sgd", "Theirs", values=(None, None))]
        return results(make_experiment({"a": rows}))

    assert found((0.5, 0.5)) == [("", "qpsbgd", "won", "0.500", "bc-sgd", "diverged")]
    assert [one[2] for one in found((0.5, None))] == ["cannot tell"]


def test_among_our_own_lines_the_best_is_named(make_row, make_experiment):
    rows = [
        make_row(f"lr {rate}", f"lr {rate}", kind="ours", values=values)
        for rate, values in ((1, (0.5, 0.7)), (2, (0.6, 0.7)))
    ]
    sure = [make_row(name, name, kind="ours", values=values) for name, values in (("a", (1, 1)), ("b", (None, 2)))]
    experiment = make_experiment({"rate": rows, "kind": sure})
    assert results(experiment) == [
        ("rate", "lr 2", "cannot tell", "0.650", "lr 1", "0.600"),
        ("kind", "a", "won", "1.000", "b", "diverged"),
    ]
    first, second = headline(experiment).split(";")
    assert "lr 2" in first and "noise" in first and "a was best" in second and "noise" not in second


def test_without_figures_the_claims_are_counted(study):
    def said(*verdicts):
        return headline({**study, "claims": [{"text": "", "verdict": verdict} for verdict in verdicts]})

    counted = said("yes", "yes", "no", "cannot tell", "cannot tell")
    assert [word for word in counted.replace(",", "").split() if word.isdigit()] == ["5", "2", "1", "2"]
    sentences = [said(*verdicts) for verdicts in (["yes"], ["no"], ["cannot tell"], ["yes", "yes"])]
    assert len(set(sentences)) == 4 and headline(study) == sentences[0]
    assert "not" not in sentences[0] and " not " in sentences[1]
    assert said() == said("who knows", "who knows") == ""
