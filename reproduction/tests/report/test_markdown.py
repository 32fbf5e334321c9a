from qpsbgd_paper.report.markdown import markdown
from qpsbgd_paper.report.tables import escaped


def test_the_document_has_every_claim_of_the_paper_figures_and_the_main_table(toy, study):
    text = markdown([toy, study], intro="What *words* mean.", figures="figures")
    for part in (
        "# Results\n\n**Of 2 statements of the paper, each judged on its own form and setting, 2 hold here.**",
        "What *words* mean.",
        "## Title of toy\n\n`qpsbgd run toy`",
        "| claim | verdict | here |",
        "| QP-SBGD is best | yes | 0.85 against 0.75 (BinaryConnect (SGD)), two standard errors 0.05 |",
        "![Accuracy so far](figures/toy.svg)",
        "test accuracy, mean ± standard deviation of 2 seeds:",
        "| QP-SBGD | **0.850 ± 0.071** | – |",
        "The paper: A figure. `qpsbgd run study`",
        "![a \\| graph](figures/study-graph.svg)\n\nTwo \\*spins\\*.",
        "| 4 | 10 |",
    ):
        assert part in text
        text = text[text.index(part) :]
    assert "reaches 0.95" not in markdown([toy]), "an aim of ours, which the report has"
    assert "figures/" not in markdown([toy])


def test_figures_that_show_data_are_all_there_and_others_once(study):
    assert "study-map" not in markdown([study], figures="f")
    study["figures"][1]["shows_data"] = True
    assert "f/study-graph.svg" in markdown([study], figures="f") and "f/study-map.svg" in markdown([study], figures="f")


def test_long_tables_are_left_to_the_report(study):
    study["tables"][0]["body"] = [["4", "10"]] * 19
    assert "| 4 | 10 |" not in markdown([study])


def test_text_is_shown_as_it_is():
    assert escaped("a|b *c* <i> [x]\\\n`y`") == "a\\|b \\*c\\* \\<i> \\[x\\]\\\\ \\`y\\`"
