"""A classifier whose network has weights ±1."""

from __future__ import annotations

from typing import final

import numpy as np
import torch
from numpy.typing import ArrayLike
from sklearn.base import ClassifierMixin
from sklearn.metrics import accuracy_score
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import column_or_1d, validate_data
from torch import Tensor, nn
from torch.nn import functional as F

from qpsbgd.sklearn.estimator import FLOATS, BinaryNetworkEstimator, Rows


@final
class QPSBGDClassifier(ClassifierMixin, BinaryNetworkEstimator):  # type: ignore[misc]
    """A classifier whose network has weights ±1.

    The network is a `torch.nn.Sequential`: inputs are standardised as in training, then come binary layers, each with a
    batch norm, and ReLU in between. QP-SBGD trains the weights and AdamW the norms, both with a rate that falls to
    zero by a cosine. The random numbers of torch and numpy outside are neither used nor changed.

    Args:
        hidden_layers: Widths of the hidden layers, or one width; () for none.
        projection: "ridge", or "spins" for the paper's method: see docs/projections.md.
        solver: Of the spins: a solver's name or a `Solver`; None takes the one for training.
        epochs: Passes through the data.
        batch_size: Rows of a step, about.
        learning_rate: Of the binary weights, relative to the range in which they start; None takes one from depth and
            length of training.
        real_learning_rate: Of the batch norms.
        early_stopping: Hold out rows, stop when their score no longer grows, and keep the best epoch's network.
        validation_fraction: The share of rows to hold out.
        n_iter_no_change: Epochs without a better score after which training stops.
        warm_start: Whether `fit` goes on with the network that is there.
        random_state: Seed, generator, or None for another result at every call.
        verbose: Show a progress bar.

    Attributes:
        network_: The network; its outputs are one score per class.
        classes_: The classes, in the order of the outputs.
        n_iter_: Epochs trained.
        loss_curve_: Mean loss of every epoch.
        validation_scores_: Accuracy on the rows held out, after every epoch of `fit`.
        n_features_in_: Columns of X.
        feature_names_in_: Their names, if X was a data frame.
    """

    classes_: Rows

    def partial_fit(self, X: ArrayLike, y: ArrayLike, classes: ArrayLike | None = None) -> QPSBGDClassifier:
        """One epoch on these rows; the first call needs all classes. Returns the estimator."""
        self._check_options()
        first = not hasattr(self, "network_")
        if first and classes is None:
            raise ValueError("the first call of partial_fit needs classes, all labels that will come")
        rows, values = self._validated(X, y, reset=first)
        known = self.classes_ if classes is None else np.unique(column_or_1d(classes))
        if not first and not np.array_equal(self.classes_, known):
            raise ValueError(f"classes must stay as they were, {self.classes_}, got {known}")
        unknown = np.setdiff1d(values, known)
        if len(unknown):
            raise ValueError(f"y has labels that are not in classes: {unknown}")
        self.classes_ = known
        self._fit_partly(rows, values)
        return self

    def predict(self, X: ArrayLike) -> Rows:
        """The likeliest class of every row."""
        return self._likeliest(self._outcome(X))

    def predict_proba(self, X: ArrayLike) -> Rows:
        """Probabilities (n_samples, n_classes), in the order of `classes_`."""
        return self._outcome(X).softmax(1).numpy()

    def _validated(self, X: ArrayLike, y: ArrayLike, *, reset: bool) -> tuple[Rows, Rows]:
        rows, values = validate_data(self, X, y, reset=reset, dtype=FLOATS, ensure_min_samples=2)
        check_classification_targets(values)
        return rows, values

    def _learn_targets(self, values: Rows, *, again: bool) -> None:
        classes = np.unique(values)
        if again and not np.array_equal(self.classes_, classes):
            raise ValueError(f"with warm_start the classes must stay the same, {self.classes_}, got {classes}")
        self.classes_ = classes

    def _strata(self, values: Rows) -> Rows | None:
        return values

    def _outputs(self) -> int:
        return len(self.classes_)

    def _ending(self, dtype: torch.dtype) -> list[nn.Module]:
        return []

    def _encoded(self, values: Rows) -> Tensor:
        return torch.from_numpy(np.searchsorted(self.classes_, values))

    def _loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return F.cross_entropy(outputs, targets)

    def _scored(self, rows: Rows, values: Rows) -> float:
        return float(accuracy_score(values, self._likeliest(self._forward(rows))))

    def _likeliest(self, outputs: Tensor) -> Rows:
        found: Rows = self.classes_[outputs.argmax(1).numpy()]
        return found
