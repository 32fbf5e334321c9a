"""The paper's pictures of MNIST: how a digit becomes 16 bits, and which digits a network tells apart."""

from collections.abc import Sequence
from typing import Any

import numpy as np

Figure = dict[str, Any]

COLUMNS, ROWS = 5, 4
"""Images side by side and below each other, of each digit."""


def feature_figure(image: np.ndarray[Any, Any]) -> Figure:
    """An image (28, 28) of bytes, its key points, and four of the 16 lines that make its bits."""
    from qpsbgd_paper.datasets.mnist_bits import NUM_BITS, bits_of, key_points

    points, (middle_y, middle_x) = key_points(image / 255.0)
    dots = {"x": points[:, 1].tolist(), "y": points[:, 0].tolist(), "style": "points", "colour": 0}
    half = len(image) / 2
    lines = []
    for k in range(0, NUM_BITS, NUM_BITS // 4):
        along_x, along_y = np.cos(k * np.pi / NUM_BITS), np.sin(k * np.pi / NUM_BITS)
        ends = {"x": [middle_x - half * along_x, middle_x + half * along_x]}
        ends |= {"y": [middle_y - half * along_y, middle_y + half * along_y]}
        lines.append({**ends, "colour": 2, "label": "lines 0, 4, 8 and 12 of 16" if not k else None})
    values = image.tolist()
    bits = "".join("+" if bit > 0 else "−" for bit in bits_of(image[None])[0])
    caption = (
        "The image; the key points, which are the centres of the superpixels that belong to the digit; four of the 16 "
        f"lines through their mean. A bit is + where most key points lie on the positive side of its line. Here: {bits}"
    )
    panels = [
        {"title": "the image", "values": values},
        {"title": "key points", "values": values, "lines": [{**dots, "label": "key points"}]},
        {"title": "four lines", "values": values, "lines": [*lines, dots]},
    ]
    text = {"name": "features", "title": "How a digit becomes 16 bits", "caption": caption}
    return {**text, "kind": "images", "shows_data": True, "panels": panels}


def answers_figure(
    images: np.ndarray[Any, Any], targets: Sequence[int], answers: Sequence[int], *, names: Any
) -> Figure:
    """Images (N, 28, 28) of two classes with the network's answers; wrong ones in a red frame."""
    panels = []
    right = []
    for target, name in enumerate(names):
        shown = [number for number, each in enumerate(targets) if each == target][: COLUMNS * ROWS]
        size = images.shape[1]
        mosaic = np.zeros((ROWS * size, COLUMNS * size), dtype=int)
        frames = []
        for place, number in enumerate(shown):
            y, x = (place // COLUMNS) * size, (place % COLUMNS) * size
            mosaic[y : y + size, x : x + size] = images[number]
            right.append(answers[number] == target)
            if not right[-1]:
                low_x, high_x, low_y, high_y = x + 0.5, x + size - 1.5, y + 0.5, y + size - 1.5
                corners = {"x": [low_x, high_x, high_x, low_x, low_x], "y": [low_y, low_y, high_y, high_y, low_y]}
                frames.append({**corners, "colour": 0, "label": "taken for the other digit"})
        panels.append({"title": f"classification of {name}s", "values": mosaic.tolist(), "lines": frames})
    caption = (
        f"The first {COLUMNS * ROWS} test images of each digit, by QP-SBGD as printed on the virtual QPU, paper's "
        f"settings, first seed, weights of best training accuracy: {np.mean(right):.1%} of these are right (in the "
        "paper's figure 72.5%)."
    )
    text = {"name": "answers", "title": "Digits told apart", "caption": caption}
    return {**text, "kind": "images", "shows_data": True, "columns": 2, "panels": panels}
