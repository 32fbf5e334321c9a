import io
import re
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest

pytest.importorskip("matplotlib")
PIL = pytest.importorskip("PIL.Image")

from qpsbgd_paper.report.figures import drawn_series, figures  # noqa: E402
from qpsbgd_paper.report.styles import line_styles  # noqa: E402

KEPT = Path(__file__).parents[3] / "docs" / "figures"


def svg_of(summary):
    return figures(summary, ["svg"])["toy.svg"]


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


def test_a_pdf_holds_text_as_text_and_the_same_bytes_at_every_call(toy):
    found = figures(toy, ["pdf"])
    assert list(found) == ["toy.pdf"]
    assert found["toy.pdf"].startswith(b"%PDF") and b"CreationDate" not in found["toy.pdf"]
    assert found == figures(toy, ["pdf"])


def test_an_unknown_format_is_refused(toy):
    with pytest.raises(ValueError, match="drawn as svg, png, pdf, not as 'gif'"):
        figures(toy, ["svg", "gif"])


def test_the_same_results_make_the_same_bytes(toy):
    assert figures(toy) == figures(toy)
    assert b"<dc:date>" not in svg_of(toy)


def test_an_svg_has_no_background_and_refers_to_nothing_outside(toy):
    svg = svg_of(toy).decode()
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
    labels = [(pair, setting) for setting in ("paper", "long") for pair in ("0/2", "1/2", "1/7")]
    svg = svg_of(make_experiment({label: [make_row("one", "One")] for label in labels}))
    assert {"0/2 (paper)", "1/7 (long)"} <= set(texts(svg))
    assert texts(svg).count("One") == 1


def test_cases_without_a_common_method_have_their_own_legends(make_row, make_experiment):
    summary = make_experiment(
        {"rate": [make_row("lr", "lr", kind="ours")], "size": [make_row("8", "eight", kind="ours")]}
    )
    found = texts(svg_of(summary))
    assert {"rate", "size", "lr", "eight"} <= set(found)


def test_an_exploding_line_leaves_the_others_their_room(make_row, make_experiment):
    alike = [make_row(f"m{k}", f"Method {k}", mean=np.linspace(0.9, 0.5 + 0.01 * k, 20).tolist()) for k in range(4)]
    wild = make_row("wild", "Wild", mean=[10.0**k for k in range(19)] + [float("nan")])
    svg = svg_of(make_experiment({"a": [*alike, wild]}, series=[{"key": "curve", "label": "loss"}]))
    ticks = [float(text.replace("−", "-")) for text in texts(svg) if re.fullmatch(r"[−\d.]+", text)]
    assert "Wild" in texts(svg)
    assert 0.5 < max(tick for tick in ticks if tick != int(tick)) < 3


def test_names_of_methods_are_never_formulas(make_row, make_experiment):
    svg = svg_of(make_experiment({"a_$x$": [make_row("one", r"cost $\frac{1}{2}$ <b>")]}))
    assert r"cost $\frac{1}{2}$ <b>" in texts(svg)


def test_an_experiment_without_curves_has_no_figures(toy):
    assert figures({**toy, "series": []}) == {}


@pytest.fixture
def digits(make_row, make_experiment):
    """Two and ten epochs, counted from one."""

    def rows(epochs):
        found = [make_row("qpsbgd", "QP-SBGD", kind="ours", mean=[0.9] * epochs)]
        found[0]["curves"]["curve"]["x"] = list(range(1, epochs + 1))
        return found

    series = [{"key": "curve", "label": "test accuracy", "x_label": "epoch"}]
    return make_experiment({f"{epochs} epochs": rows(epochs) for epochs in (1, 2, 10)}, series=series)


def test_epochs_are_whole_numbers(digits):
    made = drawn_series(digits, digits["series"][0])
    made.draw_without_rendering()
    for axes, epochs in zip(made.axes, (1, 2, 10), strict=True):
        low, high = axes.get_xlim()
        ticks = [tick for tick in axes.get_xticks() if low <= tick <= high]
        assert ticks and all(tick == int(tick) for tick in ticks), epochs


def test_a_line_that_leaves_the_scale_has_an_arrow_and_how_far_it_goes(make_row, make_experiment):
    alike = [make_row(f"m{k}", f"Method {k}", mean=[1.0, 0.8, 0.6]) for k in range(4)]
    wild = make_row("wild", "Wild", mean=[1.0, 5e3, 5.4e6])
    low = make_row("low", "Low", mean=[-700.0, 0.8, 0.6])
    for rows, words in (
        (alike, []),
        ([*alike, wild], ["to 5.4e+06"]),
        ([*alike, wild, low], ["to 5.4e+06", "to -7e+02"]),
    ):
        summary = make_experiment({"a": rows})
        made = drawn_series(summary, summary["series"][0])
        assert [text.get_text() for text in made.axes[0].texts] == words
        arrows = [line for line in made.axes[0].lines if line.get_marker() in "^v"]
        outside = [row["line"] for row in rows if row["line"] in ("wild", "low")]
        assert [line.get_color() for line in arrows] == [line_styles(summary)[line].colour for line in outside]


def test_labels_and_titles_stay_inside(make_row, make_experiment):
    label = "share of the entries of the projected gradient that have the sign of the gradient of the full batch"
    cases = {f"a case with quite a long name, number {k}": [make_row("one", "One " * 12)] for k in range(3)}
    for names in (list(cases)[:1], list(cases)[:2], list(cases)):
        summary = make_experiment({name: cases[name] for name in names}, series=[{"key": "curve", "label": label}])
        made = drawn_series(summary, summary["series"][0])
        made.draw_without_rendering()
        width, height = made.bbox.max
        for axes in made.axes:
            frame = axes.get_window_extent()
            words = axes.yaxis.label.get_window_extent()
            assert words.y0 >= frame.y0 - 4 and words.y1 <= frame.y1 + 4
            for text in (axes.yaxis.label, axes.xaxis.label, axes._left_title, *made.legends[0].get_texts()):
                box = text.get_window_extent()
                assert box.x0 >= -1 and box.x1 <= width + 1 and box.y0 >= -1 and box.y1 <= height + 1, text


def test_numbers_in_a_text_keep_their_digits(make_row, make_experiment):
    rates = [make_row(f"lr {rate}", f"lr {rate}", kind="ours") for rate in (0.001, 0.003)]
    found = texts(svg_of(make_experiment({"a": rates})))
    assert {"lr 0.001", "lr 0.003"} <= set(found)


def test_lines_of_one_label_are_told_apart_by_their_names(make_row, make_experiment):
    found = texts(svg_of(make_experiment({"a": [make_row("x", "lr 0.00"), make_row("y", "lr 0.00")]})))
    assert {"lr 0.00 (x)", "lr 0.00 (y)"} <= set(found)


def test_a_run_that_diverged_leaves_a_gap(make_row, make_experiment):
    rows = [make_row("one", "One", mean=[0.5, None, 0.7]), make_row("two", "Two", mean=[None] * 3)]
    rows[0]["curves"]["curve"]["deviation"][1] = None
    assert "Two" in texts(svg_of(make_experiment({"a": rows})))


def test_figures_that_are_kept_are_light():
    sizes = {path.name: path.stat().st_size for path in KEPT.iterdir()}
    assert sizes and sum(sizes.values()) < 1_600_000
    assert {name: size for name, size in sizes.items() if size > 120_000} == {}
