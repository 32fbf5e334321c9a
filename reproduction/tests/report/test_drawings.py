import io
import re
from xml.etree import ElementTree

import numpy as np
import pytest

pytest.importorskip("matplotlib")
PIL = pytest.importorskip("PIL.Image")

from qpsbgd_paper.report import drawings  # noqa: E402
from qpsbgd_paper.report.drawings import figure_svg  # noqa: E402
from qpsbgd_paper.report.rendering import on_white  # noqa: E402


def figure_png(figure):
    return on_white(lambda: drawings.drawn(figure), "png")


from qpsbgd_paper.report.figures import figures  # noqa: E402
from qpsbgd_paper.report.styles import PALETTE, RED  # noqa: E402


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
HISTOGRAMS = figure(
    "histograms",
    {
        "title": "update 0",
        "x_label": "energy",
        "edges": [-2, -1, 0, 1],
        "counts": [100, 10, 1],
        "log": "y",
        "mark": {"x": -2, "label": "optimum"},
    },
)
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
GRAPHS = figure(
    "graphs",
    {
        "title": "triangle",
        "nodes": [[0, 0], [1, 0], [0, 1]],
        "edges": [[0, 1], [1, 2]],
        "colours": [0, -1, 17],
        "edge_colours": [-1, -2],
        "labels": ["u", "", "w"],
    },
)
ALL = [LINES, HISTOGRAMS, MATRICES, IMAGES, GRAPHS]


def texts(svg):
    root = ElementTree.fromstring(svg)
    return ["".join(node.itertext()).strip() for node in root.iter("{http://www.w3.org/2000/svg}text")]


@pytest.mark.parametrize("drawn", ALL, ids=lambda drawn: drawn["kind"])
def test_every_kind_is_drawn_with_the_same_bytes_at_every_call(drawn):
    svg = figure_svg(drawn, name="x")
    assert ElementTree.fromstring(svg) is not None
    assert svg == figure_svg(drawn, name="x")
    picture = figure_png(drawn)
    assert picture == figure_png(drawn)
    assert not re.search(r"<path[^>]*fill: #ffffff", svg)
    assert not re.search(r'(href="|url\()(?!#|data:image/png)', svg)
    assert PIL.open(io.BytesIO(picture)).convert("RGB").getpixel((2, 2)) == (255, 255, 255)


def test_all_that_is_named_is_in_the_picture():
    assert {"levels", "t/T", "eigenvalue", "ground level", "smallest gap", "growth", "100"} <= set(
        texts(figure_svg(LINES))
    )
    assert {"update 0", "energy", "optimum", "100"} <= set(texts(figure_svg(HISTOGRAMS)))
    assert {"one", "a", "b", "c", "d", "first", "second", "similarity"} <= set(texts(figure_svg(MATRICES)))
    assert "third" not in texts(figure_svg(MATRICES))
    assert set(texts(figure_svg(IMAGES))) == {"two", "three", "a line beyond"}
    assert {"triangle", "u", "w"} <= set(texts(figure_svg(GRAPHS)))


def test_colours_are_counted_from_the_palette_and_begin_again():
    svg = figure_svg(GRAPHS)
    assert RED in svg and PALETTE[17 % len(PALETTE)] in svg


def test_names_are_never_formulas():
    hostile = r"cost $\frac{1}{2}$ <b> & _x_"
    drawn = figure("graphs", {"title": hostile, "nodes": [[0, 0]]})
    assert hostile in texts(figure_svg(drawn))


def test_labels_that_panels_share_stand_in_the_legend_once():
    panel = HISTOGRAMS["panels"][0]
    assert texts(figure_svg(figure("histograms", panel, panel))).count("optimum") == 1


def test_ids_begin_with_the_name_so_that_several_figures_can_stand_on_a_page():
    ids = [re.findall(r'\bid="([^"]+)"', figure_svg(LINES, name=name)) for name in ("one", "two <&")]
    assert ids[0] and all(key.startswith("one-") for key in ids[0])
    assert all(key.startswith("two-") for key in ids[1])
    svg = figure_svg(LINES, name="one")
    assert set(re.findall(r'(?:href="#|url\(#)([^")]+)', svg)) <= set(ids[0])


def test_a_graph_as_large_as_a_chip_stays_small():
    jitter = np.random.default_rng(0).normal(scale=0.003, size=(6000, 2))
    nodes = ([[x / 80, y / 75] for x in range(80) for y in range(75)] + jitter).tolist()
    edges = [[k, k + 75] for k in range(6000 - 75)] + [[k, k + 1] for k in range(5999) if k % 75 < 74]
    colours = [k // 1500 * 8 + k % 75 // 10 for k in range(6000)]
    panel = {"title": "chip", "nodes": nodes, "edges": edges, "edge_colours": [-1] * len(edges), "size": 2}
    svg = figure_svg(figure("graphs", {**panel, "colours": colours}))
    assert len(svg) < 300_000
    assert "chip" in texts(svg)
    assert svg.count("<path") < 10


def test_an_empty_cell_shows_the_page():
    filled = {"title": "", "values": [[0.5, 0.5], [0.5, 0.5]]}
    holed = {"title": "", "values": [[0.5, None], [None, 0.5]]}
    white = [
        np.asarray(PIL.open(io.BytesIO(figure_png(figure("matrices", panel, limits=[0, 1])))).convert("L")) == 255
        for panel in (filled, holed)
    ]
    assert white[1].mean() > white[0].mean() + 0.2


@pytest.mark.parametrize(
    "bad",
    [
        figure("pie", {"title": "x"}),
        figure("lines"),
        figure("lines", {"title": "no lines"}),
        figure("lines", {"lines": [{"x": [0], "y": [0], "style": "zigzag"}]}),
        figure("lines", {"lines": [{"x": [0, 1], "y": [0]}]}),
        figure("histograms", {"edges": [0, 1], "counts": [1, 2]}),
        figure("graphs", {"nodes": [[0, 0]], "colours": [0, 1]}),
        figure("graphs", {"nodes": [[0, 0]], "edges": [[0, 1]]}),
        figure("matrices", {"values": [[1, 2], [3]]}),
        figure("matrices", {"values": [[1]]}, colours="rainbow"),
    ],
)
def test_what_cannot_be_drawn_is_refused(bad):
    with pytest.raises(ValueError, match=r"needs panels and a kind|cannot be drawn"):
        figure_svg(bad)


def test_a_study_has_a_file_for_every_figure(study):
    found = figures(study)
    assert set(found) == {"study-graph.svg", "study-graph.png", "study-map.svg", "study-map.png"}
    assert found["study-graph.png"].startswith(b"\x89PNG")


def test_two_figures_of_one_name_are_refused(study):
    study["figures"].append(study["figures"][0])
    with pytest.raises(ValueError, match="two figures named 'study-graph'"):
        figures(study)


def test_figures_stand_beside_curves(toy, study):
    assert set(figures({**toy, "figures": study["figures"][:1]})) == {
        "toy.svg",
        "toy.png",
        "toy-graph.svg",
        "toy-graph.png",
    }
