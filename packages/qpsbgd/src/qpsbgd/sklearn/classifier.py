"""A classifier whose network has weights ±1."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, final

import numpy as np
import torch
from numpy.typing import ArrayLike
from sklearn.base import ClassifierMixin
from sklearn.metrics import accuracy_score
from sklearn.utils.class_weight import compute_sample_weight
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import column_or_1d
from torch import Tensor, nn
from torch.nn import functional as F

from qpsbgd.sklearn.estimator import BinaryNetworkEstimator, Rows, WeightedRows

_LEAST_SHARE = 1e-4  # least share of a class when the outputs' first biases are set


@final
@dataclass(eq=False, repr=False)
class QPSBGDClassifier(ClassifierMixin, BinaryNetworkEstimator):  # type: ignore[misc]
    """A classifier whose network has weights ±1.

    The network is a `torch.nn.Sequential`: inputs are standardised as in training and scaled by a factor per column,
    then come binary layers, each with a batch norm, and ReLU and dropout in between. QP-SBGD trains the weights, and
    AdamW the norms and factors, both with a rate that falls to zero by a cosine. The random numbers of torch and numpy
    outside are neither used nor changed, and the order of the rows makes no difference.

    Args:
        hidden_layers: Widths of the hidden layers, or one width; () for none.
        projection: "ridge", or "spins" for the paper's method: see docs/networks.md.
        solver: Solver of the spins, by name or a `Solver`; None takes the default.
        epochs: Passes through the data; None for 24, and more where these would be fewer than 60 steps.
        batch_size: Rows per step, approximately.
        dropout: The share of hidden units left out of each step, against overfitting; None for 0.3, and less
            where there are more than 13 rows per column.
        learning_rate: Rate of the binary weights, relative to their initial range; None derives one from depth and
            length of training.
        real_learning_rate: Rate of the batch norms and column factors.
        class_weight: A factor on the weights of each class's rows, as a dict, or "balanced" for the inverse of their
            shares.
        early_stopping: Hold out rows, stop when their score no longer improves, and keep the best epoch's network.
        validation_fraction: The share of rows to hold out.
        n_iter_no_change: Epochs without a better score after which training stops.
        random_state: Seed, generator, or None for a different result at every call.
        verbose: Show a progress bar.

    Attributes:
        network_: The network; its outputs are one score per class.
        classes_: The classes, in the order of the outputs.
        n_iter_: Epochs trained.
        loss_curve_: Mean loss of every epoch.
        validation_scores_: Accuracy on the rows held out, after every epoch of `fit`.
        n_features_in_: Columns of X.
        feature_names_in_: Their names, if X was a data frame.

    Examples:
        >>> import numpy as np
        >>> from qpsbgd.sklearn import QPSBGDClassifier
        >>> X, y = np.array([[-1.0], [-0.8], [0.9], [1.0]] * 8), ["low", "low", "high", "high"] * 8
        >>> QPSBGDClassifier(hidden_layers=8, random_state=0).fit(X, y).predict([[-1.0], [1.0]]).tolist()
        ['low', 'high']
    """

    class_weight: Mapping[Any, float] | Literal["balanced"] | None = field(default=None, kw_only=True)

    classes_: Rows = field(init=False)

    def partial_fit(
        self, X: ArrayLike, y: ArrayLike, classes: ArrayLike | None = None, sample_weight: ArrayLike | None = None
    ) -> QPSBGDClassifier:
        """One epoch on these rows; the first call needs all classes. Returns the estimator."""
        self._check_options()
        first = not hasattr(self, "network_")
        if first and classes is None:
            raise ValueError("the first call of partial_fit needs classes: all labels that will ever occur")
        if self.class_weight == "balanced":
            raise ValueError('class_weight="balanced" needs all rows at once; give partial_fit a dict')
        rows, values = self._validate(X, y, reset=first)
        known = self.classes_ if classes is None else np.unique(column_or_1d(classes))
        if not first and not np.array_equal(self.classes_, known):
            raise ValueError(f"classes must stay the same, {self.classes_}, got {known}")
        unknown = np.setdiff1d(values, known)
        if len(unknown):
            raise ValueError(f"y has labels that are not in classes: {unknown}")
        self.classes_ = known
        self._fit_partly(rows, values, sample_weight)
        return self

    def predict(self, X: ArrayLike) -> Rows:
        """The likeliest class of every row."""
        return self._likeliest(self._outcome(X))

    def predict_proba(self, X: ArrayLike) -> Rows:
        """Probabilities (n_samples, n_classes), in the order of `classes_`."""
        return self._outcome(X).softmax(1).numpy()

    def _validate(self, X: ArrayLike, y: ArrayLike, *, reset: bool, **_: Any) -> tuple[Any, Rows]:
        rows, values = super()._validate(X, y, reset=reset)
        check_classification_targets(values)
        return rows, values

    def _weights(self, rows: Any, values: Rows, sample_weight: ArrayLike | None) -> Rows | None:
        weights = super()._weights(rows, values, sample_weight)
        if self.class_weight is None:
            return weights
        factors: Rows = compute_sample_weight(self.class_weight, values)
        return factors if weights is None else factors * weights

    def _learn_targets(self, samples: WeightedRows) -> None:
        self.classes_ = np.unique(samples.values)

    def _final_modules(self, norm: nn.BatchNorm1d, samples: WeightedRows) -> list[nn.Module]:
        """None; the outputs begin with the logarithms of the classes' shares."""
        marked = F.one_hot(self._encode(samples.values), len(self.classes_))
        shares = torch.from_numpy(np.average(marked.numpy(), axis=0, weights=samples.weights))
        shares = shares.clamp(_LEAST_SHARE, 1 - _LEAST_SHARE)
        with torch.no_grad():
            norm.bias.copy_(shares.log() - shares.log().mean())
        return []

    def _strata(self, values: Rows) -> Rows | None:
        return values

    def _outputs(self) -> int:
        return len(self.classes_)

    def _encode(self, values: Rows) -> Tensor:
        return torch.from_numpy(np.searchsorted(self.classes_, values))

    def _losses(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return F.cross_entropy(outputs, targets, reduction="none")

    def _score(self, rows: Any, values: Rows) -> float:
        return float(accuracy_score(values, self._likeliest(self._forward(rows))))

    def _likeliest(self, outputs: Tensor) -> Rows:
        return self.classes_[outputs.argmax(1).numpy()]
