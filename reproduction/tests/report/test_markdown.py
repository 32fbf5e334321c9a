from qpsbgd_paper.report.markdown import escaped, markdown


def test_the_claims_of_the_paper_stand_first_and_every_experiment_has_a_short_section(toy):
    text = markdown([toy, {**toy, "title": "Another", "paper": "It is best."}], title="All", intro="Hello.")
    assert text.startswith(
        "# All\n\n**Of 2 statements of the paper, each judged on its own form and setting, 2 hold here.**\n\nHello.\n"
    )
    assert text.index("## The paper's claims") < text.index("## Title of toy") < text.index("## Another")
    won = "**The paper's claim holds here. QP-SBGD won; QP-SBGD, as printed lost to the best baseline.**"
    assert text.count(won) == 2
    assert "The paper: It is best. `qpsbgd run toy`" in text
    assert "Test accuracy, mean ± standard deviation of 2 seeds:\n\n| method |" in text
    assert "| QP-SBGD | **0.850 ± 0.071** | – |" in text
    assert text.count("QP-SBGD is best") == 2, "once per experiment"
    assert ".svg" not in text


def test_what_was_chosen_with_results_in_view_is_said(toy):
    toy["chosen in view"] = "The *recipe*."
    assert "\nChosen with results in view: The \\*recipe\\*.\n" in markdown([toy])


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


def test_a_section_has_one_picture_unless_others_show_data(study, toy):
    text = markdown([study, toy], figures="figures")
    assert "![a \\| graph](figures/study-graph.svg)\n\nTwo \\*spins\\*.\n" in text
    assert "study-map.svg" not in text
    study["figures"][1]["shows_data"] = True
    assert "![A map](figures/study-map.svg)" in markdown([study], figures="figures")
    assert "| study | It fits | – | – | 10 tiles | – | – | yes |" in text
    assert "Rows:\n\n| n | tiles |" in text


def test_a_long_table_is_left_to_the_report(study):
    study["tables"][0]["body"] = [["4", "10"]] * 19
    assert "| 4 | 10 |" not in markdown([study])


def test_verdicts_and_commands_are_shown_as_they_are(toy):
    toy["claims"][0]["verdict"] = "<img src=x> | **maybe**"
    toy["command"] = "qpsbgd run toy\n\n<script>alert(1)</script>\x1b[31m"
    text = markdown([toy])
    assert "\n<script" not in text and "\x1b" not in text
    assert "`qpsbgd run toy <script>alert(1)</script>\\x1b[31m`\n" in text, "one line, which markdown shows as code"
    assert text.count(r"\<img src=x> \| \*\*maybe\*\*") == 1
