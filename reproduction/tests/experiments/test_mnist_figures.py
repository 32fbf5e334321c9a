import numpy as np
import pytest

pytest.importorskip("skimage")

from qpsbgd_paper.datasets.mnist_bits import bits_of
from qpsbgd_paper.experiments.mnist import COLUMNS, ROWS, answers_figure, feature_figure


def test_a_digit_is_shown_with_its_key_points_lines_and_bits():
    image = np.zeros((28, 28), dtype=np.uint8)
    image[4:24, 12:16] = 255
    found = feature_figure(image)
    plain, dotted, lined = found["panels"]
    assert plain["values"] == image.tolist() and "lines" not in plain
    assert all(8 < x < 20 for x in dotted["lines"][0]["x"])
    assert [line.get("style") for line in lined["lines"]] == [None] * 4 + ["points"]
    first, third = lined["lines"][0], lined["lines"][2]
    assert first["y"][0] == pytest.approx(first["y"][1]) and third["x"][0] == pytest.approx(third["x"][1])
    signs = "".join("+" if bit > 0 else "−" for bit in bits_of(image[None])[0])
    assert found["caption"].endswith(signs)
    assert found["shows_data"]


def test_wrong_answers_are_framed_and_counted():
    each = COLUMNS * ROWS
    images = np.arange(2 * each)[:, None, None] * np.ones((1, 4, 4), dtype=int)
    targets = [0, 1] * each
    answers = list(targets)
    answers[0] = 1  # the first of the first digit
    answers[3] = 0  # the second of the second
    found = answers_figure(images, targets, answers, names=(1, 2))
    ones, twos = found["panels"]
    assert ones["title"] == "classification of 1s"
    assert np.array(ones["values"]).shape == (4 * ROWS, 4 * COLUMNS)
    assert ones["values"][0][4] == 2, "the second of the first digit"
    assert [len(panel["lines"]) for panel in (ones, twos)] == [1, 1]
    assert max(ones["lines"][0]["x"]) < 4 < min(twos["lines"][0]["x"])
    assert "95.0% of these are right" in found["caption"]
