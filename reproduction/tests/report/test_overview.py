import xml.etree.ElementTree as ElementTree

import pytest

from qpsbgd_paper.report.overview import overview, picture, sentence, topic, verdicts


def claim(text="It is best (a)", verdict="yes", *, detail="", **others):
    return {"text": text, "source": "paper", "verdict": verdict, "detail": detail, **others}


@pytest.fixture
def summary(make_row, make_experiment):
    rows = [
        make_row("qpsbgd", "Spins", kind="ours", values=(0.8, 0.9)),
        make_row("qpsbgd-printed", "Printed", kind="paper", values=(0.6, 0.7)),
        make_row("bc-sgd", "BC", values=(0.7, 0.8)),
        make_row("frozen", "Frozen", kind="control", values=(0.1, 0.2)),
    ]
    where = {"cases": ["a"], "metric": "score", "line": "qpsbgd-printed", "number": "0.75", "rival": "bc-sgd"}
    claims = [claim(**where), claim("It is best (b)", "no", **{**where, "cases": ["b"]}), claim("An aim", source="aim")]
    return make_experiment({"a": rows, "b": rows}, claims=claims)


def test_claims_of_one_topic_share_a_row_with_both_numbers_and_their_unit(summary):
    (row,) = overview([summary]).body
    numbers = ["0.75", "0.650", "BC 0.750", "frozen 0.150"]
    assert row == ["toy", "It is best", "test accuracy", *numbers, "yes 1, no 1"]


def test_a_claim_about_a_rival_has_its_number_beside_qp_sbgds(summary):
    about = {**summary["claims"][0], "line": "bc-sgd", "rival": "qpsbgd-printed"}
    (row,) = overview([{**summary, "claims": [about]}]).body
    assert row[4:6] == ["0.650", "BC 0.750"]


def test_a_claim_without_lines_shows_the_figures_that_decided_it(summary):
    (row,) = overview([{**summary, "claims": [claim(detail="3 of 4")]}]).body
    assert row[4:7] == ["3 of 4", "–", "–"]


def test_settings_are_no_part_of_a_topic():
    assert topic("QP-SBGD (G) is best (paper) (x)") == "QP-SBGD (G) is best"
    assert topic("QP-SBGD (G) is best on average over the pairs (long)") == "QP-SBGD (G) is best"
    assert (
        topic("QP-SBGD is robust to the batch size: 1/4 is level with 1/16 (a)")
        == "QP-SBGD is robust to the batch size"
    )


def test_the_seeds_that_are_needed_and_what_the_virtual_chip_says_stand_behind_the_verdict():
    needed = claim(verdict="cannot tell", detail="0.1 against 0.2; 17 seeds needed")
    assert verdicts([needed]) == "cannot tell; seeds needed: 17"
    chip = claim(verdict="not run on hardware", detail="on the virtual QPU no: 0.1 against 0.2")
    assert verdicts([chip, chip]) == "not run on hardware (2 settings); virtual QPU: no"


def test_one_sentence_counts_the_paper_alone(summary):
    more = [*summary["claims"], claim("Elsewhere", source="beyond")]
    found = sentence([{**summary, "claims": more}])
    assert found.startswith("Of 2 statements of the paper") and found.endswith("1 hold here and 1 do not.")
    assert sentence([{**summary, "claims": []}]) == ""


def test_the_picture_has_a_square_per_claim_of_the_paper(summary):
    drawn = ElementTree.fromstring(picture([{**summary, "claims": [*summary["claims"], claim("<b>&", "who knows")]}]))
    titles = [element.text for element in drawn.iter("{http://www.w3.org/2000/svg}title")]
    assert titles == ["It is best (a): yes", "It is best (b): no", "<b>&: who knows"]
