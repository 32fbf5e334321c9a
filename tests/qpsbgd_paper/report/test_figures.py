import io
import re
from xml.etree import ElementTree

import numpy as np
import pytest

pytest.importorskip("matplotlib")
PIL = pytest.importorskip("PIL.Image")

from qpsbgd_paper.report.figures import figures  # noqa: E402


def texts(svg):
    root = ElementTree.fromstring(svg)
    return ["".join(node.itertext()).strip() for node in root.iter("{http://www.w3.org/2000/svg}text")]


def test_every_experiment_has_an_svg_with_all_methods_and_a_png_on_white(toy):
    found = figures(toy)
    assert sorted(found) == ["toy.png", "toy.svg"]
    labels = texts(found["toy.svg"])
    for label in ("QP-SBGD", "QP-SBGD, as printed", "BC (SGD)", "0/2", "step", "accuracy so far"):
        assert label in labels
    image = PIL.open(io.BytesIO(found["toy.png"])).convert("RGB")
    assert image.getpixel((2, 2)) == (255, 255, 255)


def test_the_same_results_make_the_same_bytes(toy):
    assert figures(toy) == figures(toy)
    assert b"<dc:date>" not in figures(toy)["toy.svg"]


def test_an_svg_has_no_background_and_refers_to_nothing_outside(toy):
    svg = figures(toy)["toy.svg"].decode()
    assert not re.search(r'(href="|url\()(?!#)', svg)
    assert "fill: #ffffff" not in svg


def test_further_series_are_further_files(toy):
    toy["series"].append({"key": "loss", "label": "loss", "x_label": "step"})
    for row in toy["cases"][0]["rows"]:
        row["curves"]["loss"] = {"x": [0, 1], "mean": [100.0, 0.01], "deviation": [0.0, 0.0]}
    found = figures(toy)
    assert set(found) == {"toy.svg", "toy.png", "toy-loss.svg", "toy-loss.png"}
    assert "0.1" in texts(found["toy-loss.svg"])  # a tick of a logarithmic axis, and no formula


def test_every_case_has_a_panel(make_row, make_experiment):
    labels = [f"{pair}, {setting}" for setting in ("paper", "long") for pair in ("0/2", "1/2", "1/7")]
    svg = figures(make_experiment({label: [make_row("one", "One")] for label in labels}))["toy.svg"]
    assert {"0/2 (paper)", "1/7 (long)"} <= set(texts(svg))
    assert texts(svg).count("One") == 1


def test_cases_without_a_common_method_have_their_own_legends(make_row, make_experiment):
    summary = make_experiment(
        {"rate": [make_row("lr", "lr", kind="ours")], "size": [make_row("8", "eight", kind="ours")]}
    )
    found = texts(figures(summary)["toy.svg"])
    assert {"rate", "size", "lr", "eight"} <= set(found)


def test_an_exploding_line_leaves_the_others_their_room(make_row, make_experiment):
    alike = [make_row(f"m{k}", f"Method {k}", mean=np.linspace(0.9, 0.5 + 0.01 * k, 20).tolist()) for k in range(4)]
    wild = make_row("wild", "Wild", mean=[10.0**k for k in range(19)] + [float("nan")])
    svg = figures(make_experiment({"a": [*alike, wild]}, series=[{"key": "curve", "label": "loss"}]))["toy.svg"]
    ticks = [float(text.replace("−", "-")) for text in texts(svg) if re.fullmatch(r"[−\d.]+", text)]
    assert "Wild" in texts(svg)
    assert 0.5 < max(tick for tick in ticks if tick != int(tick)) < 3


def test_names_of_methods_are_never_formulas(make_row, make_experiment):
    svg = figures(make_experiment({"a_$x$": [make_row("one", r"cost $\frac{1}{2}$ <b>")]}))["toy.svg"]
    assert r"cost $\frac{1}{2}$ <b>" in texts(svg)


def test_an_experiment_without_curves_has_no_figures(toy):
    assert figures({**toy, "series": []}) == {}
