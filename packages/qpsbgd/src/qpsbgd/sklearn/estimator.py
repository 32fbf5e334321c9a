"""The base of classifier and regressor: the network, its training, and the rows that it is trained with."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass, field
from itertools import pairwise
from numbers import Integral
from typing import Any, final

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator
from sklearn.model_selection import train_test_split
from sklearn.preprocessing import StandardScaler
from sklearn.utils import check_random_state
from sklearn.utils.validation import _check_sample_weight, check_is_fitted, validate_data
from torch import Tensor, nn
from torch.nn.utils import skip_init
from torch.optim.swa_utils import update_bn
from tqdm.auto import tqdm

from qpsbgd.nn import BinaryLinear
from qpsbgd.nn.contexts import temporary_attributes
from qpsbgd.optim.qpsbgd import QPSBGD
from qpsbgd.projections import Projection
from qpsbgd.solvers import Solver
from qpsbgd_qubo.options import AT_LEAST_ONE, AT_LEAST_ONE_OR_NONE, Number

Rows = NDArray[Any]

FLOATS = (np.float64, np.float32)
STEPS, EPOCHS = 60, 24
"""By default at least that many steps and epochs: with more of them most fits take longer than
scikit-learn's MLP (reproduction/benchmarks/training/estimators.py)."""
DROPOUT, DROPOUT_PER_COLUMN = 0.3, 4
"""By default dropout is the first number, or the second by rows per column if that is less: with many rows per column
dropout costs points, and with few its absence does (the script of commit af1c5b87, with --dropout)."""
CHUNK = 8192  # rows that pass through the network at once where no gradients are needed
_MOST_REPEATS = 8
"""Whole weights repeat rows as long as there are at most this many times as many then; others weigh the loss."""


@dataclass(frozen=True, eq=False)
class WeightedRows:
    """Rows to train with, dense or sparse (CSR), their targets and, where they differ, their weights."""

    rows: Any
    values: Rows
    weights: Rows | None

    @classmethod
    def of(cls, rows: Any, values: Rows, weights: Rows | None) -> WeightedRows:
        """The samples in an order of their own, so that theirs makes no difference; whole weights repeat rows."""
        if weights is not None:
            if (weights < 0).any() or not weights.any():
                raise ValueError(f"sample weights must not be negative, nor all zero, got {weights}")
            repeats = np.rint(weights).astype(int)
            if np.array_equal(repeats, weights) and repeats.sum() <= _MOST_REPEATS * len(weights):
                which, weights = np.repeat(np.arange(len(weights)), repeats), None
            else:
                which = np.flatnonzero(weights)
                weights = weights[which] / weights[which].mean()
            rows, values = rows[which], values[which]
        direction = np.random.default_rng(0).standard_normal(rows.shape[1]).astype(rows.dtype)
        tie = np.unique(values, axis=0, return_inverse=True)[1].reshape(-1)
        order = np.lexsort((tie, rows @ direction))
        return cls(rows[order], values[order], None if weights is None else weights[order])

    def __len__(self) -> int:
        return int(self.rows.shape[0])

    def part(self, which: Rows) -> WeightedRows:
        """The samples of these numbers."""
        return WeightedRows(self.rows[which], self.values[which], None if self.weights is None else self.weights[which])


@final
class ScaledColumns(nn.Module):
    """A network's first norm, with the statistics that it has; its scales are trained in this place."""

    def __init__(self, norm: Any) -> None:
        super().__init__()
        self.weight, self._mean, self._variance = norm.weight, norm.running_mean, norm.running_var

    def forward(self, rows: Tensor) -> Tensor:
        """(B, n) → (B, n)."""
        return (rows - self._mean) / self._variance.sqrt() * self.weight


@final
class SeededDropout(nn.Dropout):
    """Dropout with a generator of its own, where it has one: torch's is shared by all threads."""

    generator: torch.Generator | None = None

    def forward(self, x: Tensor) -> Tensor:
        """As in `nn.Dropout`."""
        if self.generator is None or not self.training:
            return super().forward(x)
        share = 1 - self.p
        return x * torch.empty_like(x).bernoulli_(share, generator=self.generator).div_(share)


@dataclass(eq=False, repr=False)
class BinaryNetworkEstimator(BaseEstimator):  # type: ignore[misc]  # scikit-learn comes without types
    """The base of classifier and regressor: all but the targets, their loss and the predictions from the outputs."""

    hidden_layers: int | Sequence[int] = (128, 128)
    _: KW_ONLY
    projection: str | Projection = "ridge"
    solver: str | Solver | None = None
    epochs: int | None = None
    batch_size: int = 64
    dropout: float | None = None
    learning_rate: float | None = None
    real_learning_rate: float = 0.01
    early_stopping: bool = False
    validation_fraction: float = 0.1
    n_iter_no_change: int = 10
    random_state: int | np.random.RandomState | None = None
    verbose: bool = False

    network_: nn.Sequential = field(init=False)
    n_iter_: int = field(init=False)
    loss_curve_: list[float] = field(init=False)
    validation_scores_: list[float] = field(init=False)
    _partial: QPSBGD | None = field(init=False)

    def fit(self, X: ArrayLike, y: ArrayLike, sample_weight: ArrayLike | None = None) -> Any:
        """Train a new network; returns the estimator.

        Args:
            X: At least two rows (n_samples, n_features), dense or sparse; float32 trains in single precision, all else
                in double.
            y: Their targets.
            sample_weight: Their weights; a weight of two is the same as two rows. None weighs all the same.
        """
        self._check_options()
        rows, values = self._validate(X, y, reset=True)
        samples = WeightedRows.of(rows, values, self._weights(rows, values, sample_weight))
        self._learn_targets(samples)
        self._random = check_random_state(self.random_state)
        held = None
        if self.early_stopping:
            samples, held = self._split(samples)
        self._build(samples)
        self._scaler = self._fresh_scaler(rows).fit(samples.rows, sample_weight=samples.weights)
        self._set_norms(samples.rows)
        self._train(samples, held)
        self._partial = None
        return self

    def _split(self, samples: WeightedRows) -> tuple[WeightedRows, WeightedRows]:
        rest, held = train_test_split(
            np.arange(len(samples)),
            test_size=self.validation_fraction,
            stratify=self._strata(samples.values),
            random_state=self._random,
        )
        if min(len(rest), len(held)) < 2:
            raise ValueError(
                f"early_stopping needs at least 2 samples to train with and 2 to hold out, got {len(rest)} and "
                f"{len(held)}; give more samples, or change validation_fraction"
            )
        return samples.part(np.sort(rest)), samples.part(np.sort(held))

    def _train(self, samples: WeightedRows, held: WeightedRows | None) -> None:
        count = self._count(len(samples))
        epochs = max(EPOCHS, -(-STEPS // count)) if self.epochs is None else self.epochs
        optimizer = self._optimizer(steps=epochs * count)
        self.n_iter_, self.loss_curve_, self.validation_scores_ = 0, [], []
        best, waited, kept = -np.inf, 0, {}
        with tqdm(total=epochs, desc=type(self).__name__, unit="epoch", disable=not self.verbose) as bar:
            while self.n_iter_ < epochs and waited < self.n_iter_no_change:
                self._advance(optimizer, samples)
                shown = {"loss": self.loss_curve_[-1]}
                if held is not None:
                    shown["score"] = self._score(held.rows, held.values)
                    self.validation_scores_.append(shown["score"])
                    waited += 1
                    if shown["score"] > best:
                        best, waited = shown["score"], 0
                        kept = {name: value.clone() for name, value in self.network_.state_dict().items()}
                bar.set_postfix(shown, refresh=False)
                bar.update()
        if kept:
            self.network_.load_state_dict(kept)
            return
        # The batch norms' means lag behind the weights, and saw rows with dropout.
        body = nn.Sequential(*(module for module in self._body if not isinstance(module, nn.Dropout)))
        parts = np.array_split(np.arange(len(samples)), -(-len(samples) // CHUNK))
        update_bn((self._tensor(samples.rows[part]) for part in parts), body)

    def _fit_partly(self, rows: Any, values: Rows, sample_weight: ArrayLike | None) -> None:
        """One epoch with a constant learning rate; the optimisers are kept for the next call."""
        samples = WeightedRows.of(rows, values, self._weights(rows, values, sample_weight))
        if not hasattr(self, "network_"):
            self._random, self._scaler = check_random_state(self.random_state), self._fresh_scaler(rows)
            self.n_iter_, self.loss_curve_, self._partial = 0, [], None
            self._build(samples)
        self._scaler.partial_fit(samples.rows, sample_weight=samples.weights)
        self._set_norms(samples.rows)
        if self._partial is None:
            self._partial = self._optimizer(steps=None)
        self._advance(self._partial, samples)

    def _weights(self, rows: Any, values: Rows, sample_weight: ArrayLike | None) -> Rows | None:
        """The weights of the samples; None if all are alike."""
        return None if sample_weight is None else _check_sample_weight(sample_weight, rows, dtype=np.float64)

    def _fresh_scaler(self, rows: Any) -> Any:
        return StandardScaler(with_mean=isinstance(rows, np.ndarray))  # means of sparse columns are found all the same

    def _optimizer(self, steps: int | None) -> QPSBGD:
        """QP-SBGD for the binary weights, AdamW for norms and column scales; without `steps` their rates stay."""
        return QPSBGD(
            self._body,
            lr=self.learning_rate,
            projection=self.projection,
            solver=self.solver,
            clip="range",
            steps=steps,
            relative=True,
            real={"lr": self.real_learning_rate, "fused": True},  # one kernel for a dozen short vectors
        )

    def _advance(self, optimizer: QPSBGD, samples: WeightedRows) -> None:
        """One epoch; random numbers outside are neither used nor changed, not even for a moment."""
        order, seed = self._random.permutation(len(samples)), int(self._random.randint(2**31 - 1))
        body, total = self._body.train(), 0.0
        generator = torch.Generator().manual_seed(seed)
        with temporary_attributes(
            [module for module in body if isinstance(module, SeededDropout)], generator=generator
        ):
            for part in map(samples.part, np.array_split(order, self._count(len(samples)))):
                optimizer.zero_grad()
                losses = self._losses(body(self._tensor(part.rows)), self._encode(part.values))
                value = losses.mean() if part.weights is None else (losses * self._tensor(part.weights)).mean()
                torch.autograd.backward(value)
                optimizer.step()
                total += value.item() * len(part)
        self.loss_curve_.append(total / len(samples))
        self.n_iter_ += 1

    def _count(self, rows: int) -> int:
        """The number of batches: of about `batch_size` rows, and of at least two, which a batch norm needs."""
        return max(1, min(-(-rows // self.batch_size), rows // 2))

    def _build(self, samples: WeightedRows) -> None:
        """A fresh network: standardisation, then the body with the weights, then what `_final_modules` adds."""
        rows = samples.rows
        self._dtype = dtype = torch.float32 if rows.dtype == np.float32 else torch.float64
        generator = torch.Generator().manual_seed(int(self._random.randint(2**31 - 1)))
        dropout = self.dropout
        if dropout is None:
            dropout = min(DROPOUT, DROPOUT_PER_COLUMN * rows.shape[1] / len(samples))
        body: list[nn.Module] = []
        for n, m in pairwise([rows.shape[1], *self._widths(), self._outputs()]):
            layer = skip_init(BinaryLinear, n, m, dtype=dtype)  # type: ignore[no-untyped-call]
            drawn = torch.empty(m, n, dtype=torch.float64).uniform_(-1, 1, generator=generator)  # whatever the type
            layer.weight.data.copy_(layer.initial_bound * drawn)
            body += [layer, nn.BatchNorm1d(m, dtype=dtype), nn.ReLU()]
            body += [SeededDropout(dropout)] if dropout else []
        while not isinstance(body[-1], nn.BatchNorm1d):
            body.pop()
        self._depth = len(body)
        first = nn.BatchNorm1d(rows.shape[1], eps=0.0, dtype=dtype)
        first.bias.requires_grad_(False)  # the norm behind the first weights would take it out again
        self.network_ = nn.Sequential(first, *body, *self._final_modules(body[-1], samples))

    @property
    def _body(self) -> nn.Sequential:
        """The trained part of the network."""
        first: Any = self.network_[0]
        return nn.Sequential(ScaledColumns(first), *list(self.network_)[1 : 1 + self._depth])

    def _set_norms(self, rows: Any) -> None:
        """Copy what is known of the data's means and scales into the network."""
        state, limits = self.network_[0].state_dict(), torch.finfo(self._dtype)  # the tensors themselves
        state["running_mean"].copy_(torch.from_numpy(self._scaler.mean_))
        # of a large constant, rounding errors would be left over
        scales = np.maximum(self._scaler.scale_, limits.eps * np.abs(self._scaler.mean_))
        ranges = rows.max(axis=0) - rows.min(axis=0)
        ranges = ranges if isinstance(ranges, np.ndarray) else ranges.toarray().ravel()
        scales = np.where((self._scaler.var_ == 0) & (ranges > 0), ranges, scales)  # squares that underflow to 0
        variances = state["running_var"].copy_(torch.from_numpy(np.square(scales)))
        wrong = torch.nonzero(~(variances.isfinite() & (variances >= limits.tiny))).flatten().tolist()
        if wrong:
            raise ValueError(
                f"the spread of column {wrong[0]} of X is {scales[wrong[0]]:.3g}, whose square is beyond "
                f"{str(self._dtype).removeprefix('torch.')}; rescale the column, or give X as float64"
            )

    def _tensor(self, rows: Any) -> Tensor:
        return torch.tensor(rows if isinstance(rows, np.ndarray) else rows.toarray(), dtype=self._dtype)

    def _outcome(self, X: ArrayLike) -> Tensor:
        """The network's outputs for rows from outside."""
        check_is_fitted(self, "network_")
        return self._forward(validate_data(self, X, reset=False, dtype=FLOATS, accept_sparse="csr"))

    def _forward(self, rows: Any) -> Tensor:
        network, count = self.network_.eval(), rows.shape[0]
        with torch.no_grad():
            parts = [rows[begin : begin + CHUNK] for begin in range(0, count, CHUNK)]
            return torch.cat([network(self._tensor(part)) for part in parts])

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        return tags

    def _widths(self) -> list[int]:
        hidden: Any = self.hidden_layers
        widths = [hidden] if isinstance(hidden, Integral) else hidden
        if isinstance(hidden, str) or not all(isinstance(width, int | np.integer) and width >= 1 for width in widths):
            raise ValueError(f"hidden_layers must be positive integers, such as (128, 128), got {hidden!r}")
        return [int(width) for width in widths]

    def _check_options(self) -> None:
        self._widths()
        AT_LEAST_ONE_OR_NONE.checked("epochs", self.epochs)
        AT_LEAST_ONE.checked("n_iter_no_change", self.n_iter_no_change)
        Number(whole=True, least=2).checked("batch_size", self.batch_size)
        Number(least=0, below=1, optional=True).checked("dropout", self.dropout)
        Number(positive=True, below=1).checked("validation_fraction", self.validation_fraction)

    def _validate(self, X: ArrayLike, y: ArrayLike, *, reset: bool, **options: Any) -> tuple[Any, Rows]:
        """Rows, dense or CSR, and targets as arrays that training can use."""
        options |= {"dtype": FLOATS, "ensure_min_samples": 2, "accept_sparse": "csr"}
        return validate_data(self, X, y, reset=reset, **options)

    @abstractmethod
    def _learn_targets(self, samples: WeightedRows) -> None:
        """Keep what the targets say: classes or scales."""

    def _strata(self, values: Rows) -> Rows | None:
        """Classes whose shares are the same among the rows held out; None, the default, for no such classes."""
        return None

    @abstractmethod
    def _outputs(self) -> int: ...

    @abstractmethod
    def _final_modules(self, norm: nn.BatchNorm1d, samples: WeightedRows) -> list[nn.Module]:
        """Modules after a fresh body, whose last norm may be set to what is known of the targets."""

    @abstractmethod
    def _encode(self, values: Rows) -> Tensor:
        """Targets for the loss of the body's outputs."""

    @abstractmethod
    def _losses(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """The loss of every row."""

    @abstractmethod
    def _score(self, rows: Any, values: Rows) -> float: ...
