"""A regressor whose network has weights ±1."""

from __future__ import annotations

from typing import Any, final

import numpy as np
import torch
from numpy.typing import ArrayLike
from sklearn.base import RegressorMixin
from sklearn.metrics import r2_score
from sklearn.preprocessing import StandardScaler
from sklearn.utils.validation import column_or_1d
from torch import Tensor, nn
from torch.nn import functional as F

from qpsbgd.sklearn.estimator import BinaryNetworkEstimator, Rows, WeightedRows


@final
class QPSBGDRegressor(RegressorMixin, BinaryNetworkEstimator):  # type: ignore[misc]
    """A regressor whose network has weights ±1, trained on the mean squared error.

    Network, training and options are those of `QPSBGDClassifier`. Targets are standardised for training, and the
    network's last module gives its outputs their scale back. y may have several columns.

    Attributes:
        network_: The network; its outputs are the predicted targets.
        n_iter_: Epochs trained.
        loss_curve_: Mean squared error of every epoch, of standardised targets.
        validation_scores_: R² on the rows held out, after every epoch of `fit`.
        n_features_in_: Columns of X.
        feature_names_in_: Their names, if X was a data frame.

    Examples:
        >>> import numpy as np
        >>> from qpsbgd.sklearn import QPSBGDRegressor
        >>> X = np.linspace(-1, 1, 64)[:, None]
        >>> model = QPSBGDRegressor(hidden_layers=16, random_state=0).fit(X, X[:, 0])
        >>> bool(model.score(X, X[:, 0]) > 0.5)
        True
    """

    def partial_fit(self, X: ArrayLike, y: ArrayLike, sample_weight: ArrayLike | None = None) -> QPSBGDRegressor:
        """One epoch on these rows; means and scales are those of all rows so far. Returns the estimator."""
        self._check_options()
        first = not hasattr(self, "network_")
        rows, values = self._validate(X, y, reset=first)
        if first:
            self._flat, self._targets = values.ndim == 1, StandardScaler()
        self._targets.partial_fit(_columns(values), sample_weight=self._weights(rows, values, sample_weight))
        self._fit_partly(rows, values, sample_weight)
        return self

    def predict(self, X: ArrayLike) -> Rows:
        """The targets of every row, in the shape of the y of training."""
        return self._shape_as_targets(self._outcome(X))

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.multi_output = True
        return tags

    def _validate(self, X: ArrayLike, y: ArrayLike, *, reset: bool, **_: Any) -> tuple[Any, Rows]:
        rows, values = super()._validate(X, y, reset=reset, y_numeric=True, multi_output=True)
        single = values.ndim == 2 and values.shape[1] == 1
        return rows, column_or_1d(values, warn=True) if single else values

    def _learn_targets(self, samples: WeightedRows) -> None:
        self._flat = samples.values.ndim == 1
        self._targets = StandardScaler().fit(_columns(samples.values), sample_weight=samples.weights)

    def _outputs(self) -> int:
        return len(self._targets.mean_)

    def _final_modules(self, norm: nn.BatchNorm1d, samples: WeightedRows) -> list[nn.Module]:
        return [nn.BatchNorm1d(self._outputs(), eps=0.0, dtype=self._dtype).requires_grad_(False)]

    def _set_norms(self, rows: Any) -> None:
        super()._set_norms(rows)
        state = self.network_[-1].state_dict()  # the tensors themselves
        scales = self._targets.scale_
        constant = ~np.isclose(np.square(scales), self._targets.var_)  # for which scikit-learn takes 1
        state["weight"].copy_(torch.from_numpy(np.where(constant, 0.0, scales)))
        state["bias"].copy_(torch.from_numpy(self._targets.mean_))

    def _encode(self, values: Rows) -> Tensor:
        return self._tensor(self._targets.transform(_columns(values)))

    def _losses(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return F.mse_loss(outputs, targets, reduction="none").mean(1)

    def _score(self, rows: Any, values: Rows) -> float:
        return float(r2_score(values, self._shape_as_targets(self._forward(rows))))

    def _shape_as_targets(self, outputs: Tensor) -> Rows:
        return outputs.squeeze(1).numpy() if self._flat else outputs.numpy()


def _columns(values: Rows) -> Rows:
    return values.reshape(len(values), -1)
