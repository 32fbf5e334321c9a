from torch import nn

from qpsbgd import summary
from qpsbgd.binarization.layer_report import LayerLoss, Report
from qpsbgd.nn import BinaryLinear

FULL = LayerLoss("body.0", (10, 20), 2, 0.5, 0.25, 0.12345, 1.234)
FEEDBACK = LayerLoss("", (3, 100), 1, 0.25, 0.2)
ROUNDED = LayerLoss("a\x1bb", (5, 4), 8, 0.001)
NOTHING = summary(nn.ReLU())


def test_a_report_is_a_table_of_layers_and_of_those_that_stay():
    lines = str(Report((FULL, FEEDBACK, ROUNDED), {"head": "it is used more than once"}, NOTHING)).splitlines()
    assert lines[0].split() == ["layer", "weights", "bits", "rounding", "feedback", "search", "seconds"]
    assert set(lines[1]) == {"-"} and len(lines[1]) == max(map(len, lines[:1] + lines[2:5]))
    assert lines[2].split() == ["body.0", "10", "×", "20", "2", "50.00", "%", "25.00", "%", "12.35", "%", "1.23"]
    assert lines[3].split() == ["(model)", "3", "×", "100", "1", "25.00", "%", "20.00", "%", "–", "0.00"]
    assert lines[4].split() == [r"a\x1bb", *["5", "×", "4", "8", "0.10", "%", "–", "–", "0.00"]]
    assert lines[5] == "head stays real-valued: it is used more than once"


def test_the_report_ends_with_what_is_binary_and_what_is_not():
    parts = [nn.Embedding(10, 8), *(nn.Linear(1, 1) for _ in range(7)), BinaryLinear(8, 5, bits=2, bias=False)]
    *_, last = str(Report((), {}, summary(nn.Sequential(*parts)))).splitlines()
    named = ", ".join(["0 (80)", *(f"{k} (2)" for k in range(1, 4)), "4 more (8)"])
    assert last == f"29.9 % of the parameters, 2.6 % of the bytes are binary; float remain: {named}"


def test_a_notebook_shows_the_same_table():
    html = Report((FULL,), {"head": "why"}, NOTHING)._repr_html_()
    for text in ("<table", "rounding", "body.0", "10 × 20", "12.35 %", "head stays real-valued: why"):
        assert text in html
