import io
import re
from xml.etree import ElementTree

import numpy as np
import pytest
from PIL import Image

from qpsbgd_paper.report.curves import plot_curves, plot_verdicts, y_range
from qpsbgd_paper.report.drawings import plot_panels
from qpsbgd_paper.report.figures import pictures
from qpsbgd_paper.report.rendering import image
from qpsbgd_paper.report.styles import COLOURS, PALETTE, line_looks


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


def test_colours_are_counted_from_the_palette_and_begin_again():
    text = svg(lambda: plot_panels(GRAPHS))
    assert PALETTE[0] in text and PALETTE[13 % len(PALETTE)] in text


def test_names_are_never_formulas():
    hostile = r"$\frac{1}{2}$ <b>"
    drawn = figure("graphs", {"title": hostile, "nodes": [[0, 0]]})
    assert hostile in texts(svg(lambda: plot_panels(drawn)))


def test_large_graphs_are_pictures_whose_text_stays_text():
    nodes = np.random.default_rng(0).normal(size=(3000, 2)).tolist()
    text = svg(lambda: plot_panels(figure("graphs", {"title": "many", "nodes": nodes})))
    assert "data:image/png" in text and texts(text) == ["many"] and len(text) < 200_000


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


@pytest.mark.filterwarnings("ignore:overflow encountered")
def test_numbers_too_large_for_axes_are_refused_in_one_line():
    with pytest.raises(ValueError, match=r"^a figure cannot be drawn: ") as refused:
        svg(lambda: plot_panels(figure("lines", {"lines": [{"x": [1, 1e308], "y": [1, 2]}]})))
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


def test_curves_of_two_points_are_not_drawn(make_row, make_experiment):
    short = make_experiment({"2 epochs": [make_row("a", "A", mean=(0.1, 0.2))]})
    assert not pictures(short)
    mixed = make_experiment({"2 epochs": [make_row("a", "A", mean=(0.1, 0.2))], "10 epochs": [make_row("a", "A")]})
    words = texts(svg(pictures(mixed)["toy"].draw))
    assert "10 epochs" in words and "2 epochs" not in words


def test_a_line_that_explodes_sets_no_axis_and_is_marked(make_row, make_experiment):
    rows = [make_row(f"m{k}", f"M{k}", mean=(0.9, 0.8, 0.7 + 0.01 * k)) for k in range(5)]
    rows.append(make_row("bad", "Bad", mean=(0.9, 50.0, 700.0)))
    summary = make_experiment({"a": rows}, series=[{"key": "curve", "label": "loss"}])
    plot = plot_curves(summary, summary["series"][0])
    assert plot.axes[0].get_ylim()[1] < 2
    assert [text.get_text() for text in plot.legends[0].get_texts()][-1] == "Bad ↑"


def test_an_axis_that_spans_much_is_logarithmic_but_never_that_of_an_accuracy():
    means = [np.array([1000.0, 1.0, 0.1])] * 4
    assert y_range(means, may_be_log=True)[2]
    assert not y_range(means, may_be_log=False)[2]
    assert not y_range([mean - 1 for mean in means], may_be_log=True)[2], "negative"
    assert y_range([np.array([np.nan])], may_be_log=True) == (0.0, 1.0, False)


def test_noise_is_smoothed_and_the_axis_says_so(make_row, make_experiment):
    noise = np.random.default_rng(0).random(80).tolist()
    summary = make_experiment({"a": [make_row("a", "A", mean=noise)]})
    plot = plot_curves(summary, summary["series"][0])
    drawn = plot.axes[0].lines[0].get_ydata()
    assert np.std(drawn) < 0.5 * np.std(noise) and np.isclose(drawn[40], np.mean(noise[35:45]), atol=0.03)
    assert plot.axes[0].get_ylabel().replace("\n", " ") == "accuracy so far, mean of 10 points"


def test_values_that_are_not_finite_leave_a_gap(toy):
    toy["cases"][0]["rows"][0]["curves"]["curve"]["mean"][1] = None
    line = plot_curves(toy, toy["series"][0]).axes[0].lines[0]
    assert np.isnan(line.get_ydata()).tolist() == [False, True, False]


def test_verdicts_have_a_square_per_claim_of_the_paper(toy, study):
    plot = plot_verdicts([toy, study])
    counts = {dots.get_label(): len(dots.get_offsets()) for dots in plot.axes[0].collections}
    assert counts == {"yes": 2, "no": 0, "cannot tell": 0, "not run on hardware": 0}, "aims are not the paper's"
    assert [label.get_text() for label in plot.axes[0].get_yticklabels()] == ["toy", "study"]


def test_known_methods_always_look_the_same_and_others_differ(make_row):
    rows = [make_row(f"new-{k}", "N", kind=kind) for k in range(5) for kind in ("ours", "baseline")]
    looks = line_looks([make_row("bc-sgd", "BC"), *rows])
    assert looks["bc-sgd"]["color"] == COLOURS["bc-sgd"]
    assert len({look["color"] for look in looks.values()}) == len(looks)
