from qpsbgd_paper.report.markdown import escaped, markdown


def test_every_experiment_has_its_heading_command_tables_claims_and_versions(toy):
    text = markdown([toy, {**toy, "title": "Another", "paper": "It is best."}], title="All", intro="Hello.")
    assert text.startswith("# All\n\nHello.\n\n## What holds here\n")
    for part in ("## Title of toy", "## Another", "    qpsbgd run toy", "The paper: It is best.", "### Test accuracy"):
        assert f"\n{part}\n" in text
    won = (
        "**QP-SBGD won; QP-SBGD, as printed lost to the best baseline.** QP-SBGD 0.850 (won), QP-SBGD, as printed 0.650"
    )
    assert text.count(won) == 2
    assert "| QP-SBGD | **0.850 ± 0.071** | – |" in text
    assert "| Title of toy | QP-SBGD is best | the paper | **yes** |" in text
    assert "- QP-SBGD reaches 0.95 (our aim): **no** – 0.85" in text
    assert "Mean ± standard deviation of 2 seeds." in text
    assert "Made with python 3.11, machine abacus, 2 min of training." in text
    assert ".svg" not in text


def test_what_was_chosen_with_results_in_view_is_said(toy):
    toy["chosen in view"] = "The *recipe*."
    assert "\n\nWhat it is about.\n\nChosen with results in view: The \\*recipe\\*.\n" in markdown([toy])


def test_a_bar_in_a_name_does_not_make_another_cell(toy):
    toy["cases"][0]["rows"][0]["label"] = "a | b"
    assert "| a \\| b | **0.850 ± 0.071** | – |" in markdown([toy])


def test_figures_are_linked_where_a_folder_is_given(toy):
    assert "![Title of toy](figures/toy.svg)" in markdown([toy], figures="figures")


def test_text_is_shown_as_it_is():
    assert escaped("a|b *c* <d> _e_\n`f` [g]") == r"a\|b \*c\* \<d> \_e\_ \`f\` \[g\]"


def test_the_test_is_stated_once(toy):
    toy["test"] = "two standard errors"
    assert markdown([toy, toy]).count("The test: two standard errors.") == 1


def test_a_study_links_its_figures_and_has_no_word_of_seeds_or_methods(study, toy):
    text = markdown([study, toy], figures="figures")
    assert "### A \\| graph\n\n![a \\| graph](figures/study-graph.svg)\n\nTwo \\*spins\\*.\n" in text
    assert "![A map](figures/study-map.svg)" in text
    assert "| A study | It fits | the paper | **yes** | 10 tiles |" in text
    assert "### Rows\n\n| n | tiles |" in text
    assert "One seed" not in text and "10 s of computing" in text
    assert ".svg" not in markdown([study])


def test_verdicts_and_commands_are_shown_as_they_are(toy):
    toy["claims"][0]["verdict"] = "<img src=x> | **maybe**"
    toy["command"] = "qpsbgd run toy\n\n<script>alert(1)</script>\x1b[31m"
    text = markdown([toy])
    assert "\n<script" not in text and "\x1b" not in text
    assert "    qpsbgd run toy <script>alert(1)</script>\\x1b[31m\n" in text, "one line, which markdown shows as code"
    assert text.count(r"\<img src=x> \| \*\*maybe\*\*") == 2
