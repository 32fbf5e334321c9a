"""Adult (a1a): who earns more than 50,000 dollars per year, from 123 binary features."""

from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from qpsbgd_paper.datasets.files import locate

NUM_FEATURES = 123

BALANCED_COLUMNS = (4, 5, 19, 21, 35, 36, 38, 39, 41, 62, 63, 71, 72, 79, 81)
"""The 15 columns, from 0, whose mean over the training rows lies between 0.21 and 0.79."""

THREE_COLUMNS = (5, 21, 35)  # the columns, from 0, of the network with three inputs: LIBSVM's features 6, 22 and 36


@dataclass(frozen=True, eq=False)
class AdultRows:
    """Rows of ±1 and whether each stands for a person who earns more."""

    train_inputs: Tensor  # (1605, 123), -1 or +1
    train_targets: Tensor  # (1605,), 0 or 1
    test_inputs: Tensor  # (30956, 123), -1 or +1
    test_targets: Tensor  # (30956,), 0 or 1


def load_adult(*, data: Path | None = None) -> AdultRows:
    """The sets a1a and a1a.t of LIBSVM, as float32, from a data folder as `files.locate` takes it."""
    return AdultRows(*_read(locate("adult/a1a", data=data)), *_read(locate("adult/a1a.t", data=data)))


@cache
def training_rows(columns: str = "all") -> tuple[Tensor, Tensor]:
    """Inputs and targets of training, read once: of "all" columns, the 15 "balanced" ones or the chosen "three"."""
    chosen = {"all": range(NUM_FEATURES), "balanced": BALANCED_COLUMNS, "three": THREE_COLUMNS}[columns]
    adult = load_adult()
    return adult.train_inputs[:, list(chosen)], adult.train_targets


def _read(path: Path) -> tuple[Tensor, Tensor]:
    from sklearn.datasets import load_svmlight_file

    # The training rows never use the last features; without their number the two sets would differ in width.
    rows, labels = load_svmlight_file(str(path), n_features=NUM_FEATURES, dtype=np.float32)
    return torch.from_numpy(2 * rows.toarray() - 1), torch.from_numpy((labels > 0).astype(np.float32))
