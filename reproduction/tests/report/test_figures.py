import io
import re
from xml.etree import ElementTree

import pytest
from PIL import Image

from qpsbgd_paper.report.curves import plot_curves
from qpsbgd_paper.report.drawings import plot_panels
from qpsbgd_paper.report.figures import pictures
from qpsbgd_paper.report.rendering import image


def figure(kind, *panels, **others):
    return {"name": kind, "title": kind, "caption": "", "kind": kind, "panels": list(panels), **others}


LINES = figure(
    "lines",
    {
        "title": "levels",
        "x_label": "t/T",
        "y_label": "eigenvalue",
        "lines": [
            {"x": [0, 0.5, 1], "y": [0, -1, None], "label": "ground level", "colour": 1},
            {"x": [0, 0.5, 1], "y": [1, 0.5, 0], "error": [0.1, 0.1, 0.1], "style": "dashes", "colour": -1},
            {"x": [0.5, 0.5], "y": [-1, 0.5], "style": "bar", "label": "smallest gap", "colour": 0},
        ],
    },
    {
        "title": "growth",
        "log": "xy",
        "x_limits": [1, 1000],
        "lines": [{"x": [1, 10, 100], "y": [1, 0.1, 0.01], "error": [0.1, 0.01, 0.001], "style": "points"}],
    },
)
MARK = {"x": -2, "label": "optimum"}
BINS = {
    "title": "update 0",
    "x_label": "energy",
    "edges": [-2, -1, 0, 1],
    "counts": [100, 10, 1],
    "log": "y",
    "mark": MARK,
}
HISTOGRAMS = figure("histograms", BINS)
MATRICES = figure(
    "matrices",
    {"title": "one", "values": [[1, None], [0.25, 2]], "text": [["a", "b"], ["c", "d"]]},
    colours="rising",
    limits=[0, 1],
    ticks=["first", "second", "third"],
    colour_label="similarity",
)
IMAGES = figure(
    "images",
    {"title": "two", "values": [[0, 255], [128, 0]], "lines": [{"x": [0, 9], "y": [0, 9], "label": "a line beyond"}]},
    {"title": "three", "values": [[0, 255, 1]], "lines": [{"x": [1], "y": [0], "style": "points"}]},
)
TRIANGLE = {"title": "triangle", "nodes": [[0, 0], [1, 0], [0, 1]], "edges": [[0, 1], [1, 2]], "labels": ["u", "", "w"]}
GRAPHS = figure("graphs", {**TRIANGLE, "colours": [0, -1, 13], "edge_colours": [-1, -2]})
NAMED = {
    "lines": (LINES, {"levels", "t/T", "eigenvalue", "ground level", "smallest gap", "growth", "100"}),
    "histograms": (HISTOGRAMS, {"update 0", "energy", "optimum", "100"}),
    "matrices": (MATRICES, {"one", "a", "b", "c", "d", "first", "second", "similarity"}),
    "images": (IMAGES, {"two", "three", "a line beyond"}),
    "graphs": (GRAPHS, {"triangle", "u", "w"}),
}


def svg(draw):
    return image(draw, "svg").decode()


def texts(text):
    root = ElementTree.fromstring(text)
    return ["".join(node.itertext()).strip() for node in root.iter("{http://www.w3.org/2000/svg}text")]


@pytest.mark.parametrize("kind", NAMED)
def test_every_kind_is_drawn_with_all_its_words_and_the_same_bytes_at_every_call(kind):
    drawn, words = NAMED[kind]
    text = svg(lambda: plot_panels(drawn))
    assert words <= set(texts(text)) and "third" not in texts(text)
    assert text == svg(lambda: plot_panels(drawn))
    assert not re.search(r'(href="|url\()(?!#|data:image/png)', text)
    picture = image(lambda: plot_panels(drawn), "png")
    assert picture == image(lambda: plot_panels(drawn), "png")
    assert Image.open(io.BytesIO(picture)).convert("RGB").getpixel((2, 2)) == (255, 255, 255)


def test_names_are_never_formulas():
    hostile = r"$\frac{1}{2}$ <b>"
    drawn = figure("graphs", {"title": hostile, "nodes": [[0, 0]]})
    assert hostile in texts(svg(lambda: plot_panels(drawn)))


@pytest.mark.parametrize(
    ("kind", "panel"),
    [
        ("lines", {"lines": [{"x": [1, 2], "y": [1]}]}),
        ("lines", {"lines": [{"x": [1], "y": [1], "style": "zigzag"}]}),
        ("lines", {}),
        ("histograms", {"edges": [0, 1], "counts": [1, 2]}),
        ("matrices", {"values": [[1, 2], [3]]}),
        ("matrices", {"values": [["a"]]}),
        ("images", {"values": None}),
        ("graphs", {"nodes": [[0, 0]], "edges": [[0, 1]]}),
        ("graphs", {"nodes": [[0, 0]], "colours": [1, 2]}),
    ],
)
def test_what_cannot_be_drawn_is_named_in_one_line(kind, panel):
    with pytest.raises(ValueError, match=f"^figure '{kind}' cannot be drawn: ") as refused:
        plot_panels(figure(kind, panel))
    assert "\n" not in str(refused.value)


def test_an_experiments_first_series_has_its_name_and_figures_theirs(toy, study):
    assert list(pictures(toy)) == ["toy"]
    assert list(pictures(study)) == ["study-graph", "study-map"]
    study["figures"][1]["name"] = "graph"
    with pytest.raises(ValueError, match="two figures named 'study-graph'"):
        pictures(study)


def test_curves_have_a_panel_per_case_and_every_method_in_the_legend(make_row, make_experiment):
    rows = [make_row("qpsbgd", "Ours", kind="ours"), make_row("bc-sgd", "BC (SGD)")]
    summary = make_experiment({("0/2", "long"): rows, ("1/2", "long"): rows[:1]})
    words = texts(svg(lambda: plot_curves(summary, summary["series"][0])))
    assert {"0/2 (long)", "1/2 (long)", "Ours", "BinaryConnect (SGD)", "accuracy so far", "step"} <= set(words)
