import itertools
import re

import numpy as np
import pytest

pytest.importorskip("PIL.Image")

from qpsbgd_paper.report.rendering import lightened


def path(points):
    return "M " + "\nL ".join(f"{x:.6f} {y:.6f}" for x, y in points)


def points(svg):
    """The corners of a path that has been made light."""
    steps = re.findall(r"[Ml](-?[\d.]+) (-?[\d.]+)", re.search(r' d="([^"]*)"', svg)[1])
    return np.cumsum(np.array(steps, dtype=float), axis=0)


def test_a_path_keeps_its_shape_within_a_quarter_of_a_point():
    x = np.linspace(0, 300, 400)
    y = 100 + 40 * np.sin(x / 20) + 20 * (x > 150)
    found = points(lightened(f'<svg><path id="p" d="{path(zip(x, y, strict=True))}"/></svg>'))
    assert len(found) < 150
    assert found[0] == pytest.approx((x[0], y[0]), abs=0.06) and found[-1] == pytest.approx((x[-1], y[-1]), abs=0.06)
    far = [min(_distance(np.array(p), a, b) for a, b in itertools.pairwise(found)) for p in zip(x, y, strict=True)]
    assert max(far) < 0.3


def _distance(point, first, last):
    along = last - first
    share = np.clip((point - first) @ along / max(along @ along, 1e-12), 0, 1)
    return float(np.hypot(*(point - first - share * along)))


def test_texts_ids_and_curved_paths_stay():
    svg = lightened(
        '<?xml version="1.0"?>\n<svg><!-- 0.123 -->\n  <defs><path id="m1" d="M 0 3 C 0.795609 3 1.55874 2.683 0 1 z"/>'
        '</defs>\n  <use x="1.23456" xlink:href="#m1"/><text style="font-size: 9px; font-family: \'A\', b; '
        'text-anchor: end">lr 0.00123</text></svg>'
    )
    assert svg.startswith("<svg") and "<!--" not in svg
    assert 'id="m1"' in svg and "C 0.7 3 1.5 2.6 0 1 z" in svg
    assert ">lr 0.00123</text>" in svg and 'x="1.23"' in svg
    assert "font-family: 'A'" not in svg and "text-anchor: end" in svg


def test_a_path_of_one_point_stays_a_path():
    assert 'd="M1 2l0 0"' in lightened('<svg><path d="M 1.0 2.0 L 1.0 2.0 "/></svg>')


def test_closed_parts_stay_closed_and_apart():
    svg = lightened('<svg><path d="M 0 0 L 10 0 L 10 10 z M 20 20 L 30 20 L 30 30 z"/></svg>')
    assert 'd="M0 0l10 0l0 10zM20 20l10 0l0 10z"' in svg
