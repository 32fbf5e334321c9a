"""What classifier and regressor share: the network, its training, and the checks of what comes in."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from itertools import pairwise
from numbers import Integral, Real
from os import PathLike
from typing import TYPE_CHECKING, Any, final

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator
from sklearn.model_selection import train_test_split
from sklearn.preprocessing import StandardScaler
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted, validate_data
from torch import Tensor, nn
from torch.optim.swa_utils import update_bn
from tqdm import tqdm

from qpsbgd.nn import BinaryLinear
from qpsbgd.optim.qpsbgd import QPSBGD
from qpsbgd.projections import Projection
from qpsbgd.solvers import Solver

if TYPE_CHECKING:
    from qpsbgd.deploy import CSource, PackedModel

Rows = NDArray[Any]

FLOATS = (np.float64, np.float32)
CHUNK = 8192
"""Rows that pass through the network at once where no gradients are needed."""


@final
class _Training:
    """The optimiser of a network: QP-SBGD for its binary weights, AdamW for its batch norms."""

    def __init__(self, body: nn.Sequential, estimator: BinaryNetworkEstimator, steps: int | None) -> None:
        self._body = body
        self._optimizer = QPSBGD(
            body,
            lr=estimator.learning_rate,
            projection=estimator.projection,
            solver=estimator.solver,
            clip="range",
            steps=steps,
            relative=True,
            real={"lr": estimator.real_learning_rate},
        )

    def epoch(self, inputs: Tensor, targets: Tensor, batches: Sequence[Rows], loss: Any) -> float:
        """One step per batch of row numbers; returns the mean loss."""
        self._body.train()
        total = 0.0
        for rows in map(torch.from_numpy, batches):
            self._optimizer.zero_grad()
            value = loss(self._body(inputs[rows]), targets[rows])
            value.backward()
            self._optimizer.step()
            total += value.item() * len(rows)
        return total / sum(map(len, batches))


class BinaryNetworkEstimator(BaseEstimator):  # type: ignore[misc]  # scikit-learn comes without types
    """What classifier and regressor share: all but the targets, their loss and what is predicted from the outputs."""

    network_: nn.Sequential
    n_iter_: int
    loss_curve_: list[float]
    validation_scores_: list[float]
    _partial: _Training | None

    def __init__(
        self,
        hidden_layers: int | Sequence[int] = (128, 128),
        *,
        projection: str | Projection = "ridge",
        solver: str | Solver | None = None,
        epochs: int = 50,
        batch_size: int = 64,
        learning_rate: float | None = None,
        real_learning_rate: float = 0.01,
        early_stopping: bool = False,
        validation_fraction: float = 0.1,
        n_iter_no_change: int = 10,
        warm_start: bool = False,
        random_state: int | np.random.RandomState | None = None,
        verbose: bool = False,
    ) -> None:
        self.hidden_layers = hidden_layers
        self.projection = projection
        self.solver = solver
        self.epochs = epochs
        self.batch_size = batch_size
        self.learning_rate = learning_rate
        self.real_learning_rate = real_learning_rate
        self.early_stopping = early_stopping
        self.validation_fraction = validation_fraction
        self.n_iter_no_change = n_iter_no_change
        self.warm_start = warm_start
        self.random_state = random_state
        self.verbose = verbose

    def fit(self, X: ArrayLike, y: ArrayLike) -> Any:
        """Train a new network, or with `warm_start` the one that is there; returns the estimator.

        Args:
            X: At least two rows (n_samples, n_features); float32 trains in single precision, all else in double.
            y: Their targets.
        """
        self._check_options()
        again = self.warm_start and hasattr(self, "network_")
        rows, values = self._validated(X, y, reset=not again)
        self._learn_targets(values, again=again)
        self._random = check_random_state(self.random_state)
        held = None
        if self.early_stopping:
            rows, held_rows, values, held_values = train_test_split(
                rows,
                values,
                test_size=self.validation_fraction,
                stratify=self._strata(values),
                random_state=self._random,
            )
            if min(len(rows), len(held_rows)) < 2:
                raise ValueError(
                    f"early_stopping needs at least 2 samples to train with and 2 to hold out, got {len(rows)} and "
                    f"{len(held_rows)}; give more samples, or change validation_fraction"
                )
            held = held_rows, held_values
        if not again:
            self._build(rows)
        self._scaler = StandardScaler().fit(rows)
        self._set_norms()
        self._train(rows, values, held)
        self._partial = None
        return self

    def _train(self, rows: Rows, values: Rows, held: tuple[Rows, Rows] | None) -> None:
        inputs, targets = self._standardized(rows), self._encoded(values)
        training = _Training(self._body, self, steps=self.epochs * self._count(len(rows)))
        self.n_iter_, self.loss_curve_, self.validation_scores_ = 0, [], []
        best, waited, kept = -np.inf, 0, {}
        with tqdm(total=self.epochs, desc=type(self).__name__, unit="epoch", disable=not self.verbose) as bar:
            while self.n_iter_ < self.epochs and waited < self.n_iter_no_change:
                self._advance(training, inputs, targets)
                shown = {"loss": self.loss_curve_[-1]}
                if held is not None:
                    shown["score"] = self._scored(*held)
                    self.validation_scores_.append(shown["score"])
                    waited += 1
                    if shown["score"] > best:
                        best, waited = shown["score"], 0
                        kept = {name: value.clone() for name, value in self.network_.state_dict().items()}
                bar.set_postfix(shown, refresh=False)
                bar.update()
        if kept:
            self.network_.load_state_dict(kept)
        else:
            # The running means of the batch norms lag behind the weights.
            update_bn(inputs.tensor_split(-(-len(inputs) // CHUNK)), self._body)

    def _fit_partly(self, rows: Rows, values: Rows) -> None:
        """One epoch with a constant learning rate; the optimisers are kept for the next call."""
        if not hasattr(self, "network_"):
            self._random, self._scaler = check_random_state(self.random_state), StandardScaler()
            self.n_iter_, self.loss_curve_, self._partial = 0, [], None
            self._build(rows)
        self._scaler.partial_fit(rows)
        self._set_norms()
        if self._partial is None:
            self._partial = _Training(self._body, self, steps=None)
        self._advance(self._partial, self._standardized(rows), self._encoded(values))

    def _advance(self, training: _Training, inputs: Tensor, targets: Tensor) -> None:
        order = self._random.permutation(len(inputs))
        batches = np.array_split(order, self._count(len(inputs)))
        self.loss_curve_.append(training.epoch(inputs, targets, batches, self._loss))
        self.n_iter_ += 1

    def _count(self, rows: int) -> int:
        """The number of batches: of about `batch_size` rows, and of at least two, which a batch norm needs."""
        return max(1, min(-(-rows // self.batch_size), rows // 2))

    def pack(self, path: str | PathLike[str] | None = None) -> PackedModel:
        """The trained network with one bit per weight, written to `path` where one is given: see `qpsbgd.deploy.pack`.

        It takes rows as `predict` does, and returns the classes' scores in the order of `classes_`, or the targets.
        """
        from qpsbgd.deploy import pack

        check_is_fitted(self, "network_")
        return pack(self.network_, path)

    def to_c(self, folder: str | PathLike[str], *, name: str = "network", word_bits: int = 32) -> CSource:
        """Write the trained network as C99, with the outputs of `pack`: see `qpsbgd.deploy.to_c`."""
        from qpsbgd.deploy import to_c

        check_is_fitted(self, "network_")
        return to_c(self.network_, folder, name=name, word_bits=word_bits)

    def _build(self, rows: Rows) -> None:
        """A fresh network: standardisation, then the body with the weights, then what `_ending` adds."""
        self._dtype = dtype = torch.float32 if rows.dtype == np.float32 else torch.float64
        generator = torch.Generator().manual_seed(int(self._random.randint(2**31 - 1)))
        body: list[nn.Module] = []
        for n, m in pairwise([rows.shape[1], *self._widths(), self._outputs()]):
            body += [_fresh(BinaryLinear(n, m, device="meta", dtype=dtype), generator), nn.BatchNorm1d(m, dtype=dtype)]
            body += [nn.ReLU()]
        self._depth = len(body) - 1
        first = nn.BatchNorm1d(rows.shape[1], eps=0.0, affine=False, dtype=dtype)
        self.network_ = nn.Sequential(first, *body[:-1], *self._ending(dtype))

    @property
    def _body(self) -> nn.Sequential:
        return nn.Sequential(*list(self.network_)[1 : 1 + self._depth])

    def _set_norms(self) -> None:
        """Copy what is known of the data's means and scales into the network."""
        state = self.network_[0].state_dict()  # the tensors themselves
        state["running_mean"].copy_(torch.from_numpy(self._scaler.mean_))
        state["running_var"].copy_(torch.from_numpy(np.square(self._scaler.scale_)))

    def _standardized(self, rows: Rows) -> Tensor:
        with torch.no_grad():
            standardized: Tensor = self.network_[0].eval()(self._tensor(rows))
        return standardized

    def _tensor(self, rows: Rows) -> Tensor:
        return torch.tensor(rows, dtype=self._dtype)

    def _outcome(self, X: ArrayLike) -> Tensor:
        """The network's outputs for rows from outside."""
        check_is_fitted(self, "network_")
        return self._forward(validate_data(self, X, reset=False, dtype=FLOATS))

    def _forward(self, rows: Rows) -> Tensor:
        network = self.network_.eval()
        with torch.no_grad():
            return torch.cat([network(self._tensor(part)) for part in np.array_split(rows, -(-len(rows) // CHUNK))])

    def _widths(self) -> list[int]:
        hidden: Any = self.hidden_layers
        return [int(width) for width in ([hidden] if isinstance(hidden, Integral) else hidden)]

    def _check_options(self) -> None:
        hidden: Any = self.hidden_layers
        widths = [hidden] if isinstance(hidden, Integral) else hidden
        if isinstance(hidden, str) or not all(isinstance(width, int | np.integer) and width >= 1 for width in widths):
            raise ValueError(f"hidden_layers must be positive whole numbers, such as (128, 128), got {hidden!r}")
        for name, least in (("epochs", 1), ("batch_size", 2), ("n_iter_no_change", 1)):
            value = getattr(self, name)
            if not isinstance(value, Integral) or value < least:
                raise ValueError(f"{name} must be a whole number of at least {least}, got {value!r}")
        fraction = self.validation_fraction
        if not isinstance(fraction, Real) or not 0 < fraction < 1:
            raise ValueError(f"validation_fraction must be between 0 and 1, got {fraction!r}")

    @abstractmethod
    def _validated(self, X: ArrayLike, y: ArrayLike, *, reset: bool) -> tuple[Rows, Rows]:
        """Rows and targets as arrays that training can use."""

    @abstractmethod
    def _learn_targets(self, values: Rows, *, again: bool) -> None:
        """Keep what the targets say: classes or scales; `again` where the network is there and has to fit them."""

    @abstractmethod
    def _strata(self, values: Rows) -> Rows | None:
        """What rows that are held out represent in the same shares."""

    @abstractmethod
    def _outputs(self) -> int:
        """The number of the network's outputs."""

    @abstractmethod
    def _ending(self, dtype: torch.dtype) -> list[nn.Module]:
        """Modules behind the body."""

    @abstractmethod
    def _encoded(self, values: Rows) -> Tensor:
        """Targets for the loss of the body's outputs."""

    @abstractmethod
    def _loss(self, outputs: Tensor, targets: Tensor) -> Tensor: ...

    @abstractmethod
    def _scored(self, rows: Rows, values: Rows) -> float: ...


def _fresh(layer: BinaryLinear, generator: torch.Generator) -> BinaryLinear:
    """A layer of the meta device, made real; its weights come from `generator` and do not depend on their type."""
    layer.to_empty(device="cpu")
    drawn = torch.empty(layer.weight.shape, dtype=torch.float64).uniform_(-1, 1, generator=generator)
    with torch.no_grad():
        layer.weight.copy_(layer.initial_bound * drawn)
    return layer
