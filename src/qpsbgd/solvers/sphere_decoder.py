"""Depth-first sphere decoder: binary least squares to proven optimality, one factorisation for many columns.

With any δ that makes A = Q + δI positive definite and its Cholesky factor A = RᵀR (R upper triangular),

    gᵀQg + sᵀg = ‖R g − y‖² − ‖y‖² − nδ,   Rᵀ y = −s/2,   for g ∈ {−1, +1}ⁿ.

Row k of R g − y depends on spins k…n−1 alone, so fixing spins from the last to the first adds up non-negative terms,
and a branch ends when its sum exceeds that of the best spins known.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numba import prange

from qpsbgd.solvers.kernels import compiled

Array = np.ndarray[Any, Any]


@dataclass(frozen=True, eq=False)
class Factorisation:
    """What a group of columns shares: R (n, n), and the order in which spins are its columns."""

    factor: Array
    order: Array

    def implied(self, targets: Array, spins: Array, radii: Array) -> Array:
        """The spins (m, n) that all vectors within the radii share with `spins`, 0 where that is open.

        Over real x, min ‖R x − y‖² with x_i held at the other value is (g_i + x*_i)²/(A⁻¹)_ii, x* = R⁻¹ y; a spin for
        which that exceeds the radius keeps its value.
        """
        inverse = np.linalg.inv(self.factor)
        relaxed = targets @ inverse.T
        other = (spins + relaxed) ** 2 / (inverse**2).sum(1)
        return np.where(other > radii[:, None] * (1 + 1e-9), spins, 0.0)

    def targets(self, linear: Array) -> Array:
        """Y (m, n) with Rᵀ y_j = −s_j/2 for the columns of `linear` (n, m)."""
        return np.ascontiguousarray(np.linalg.solve(self.factor.T, -0.5 * linear[self.order]).T)


@dataclass(frozen=True, eq=False)
class Search:
    """The search of a group of columns: state that `run` improves. Spins are in the order of the factorisation.

    Attributes:
        shared: The group's factorisation.
        targets: Y (m, n).
        known: Spins that need not be tried, 0 where open, (m, n).
        spins: The best so far, (m, n).
        radii: Their ‖R g − y‖², (m,).
        nodes: Nodes that each column took, −1 where it is not finished.
    """

    shared: Factorisation
    targets: Array
    known: Array
    spins: Array
    radii: Array
    nodes: Array

    @classmethod
    def of(cls, shared: Factorisation, linear: Array, fixed: Array, start: Array) -> Search:
        """The search of the columns of `linear` (n, m) from `start` (m, n), with some spins `fixed` (m, n)."""
        targets = shared.targets(linear)
        spins = np.ascontiguousarray(start[:, shared.order])
        radii = ((spins @ shared.factor.T - targets) ** 2).sum(1)
        known = fixed[:, shared.order]
        known = np.where(known != 0, known, shared.implied(targets, spins, radii))
        # Radii are sums of rounded terms; a search for strictly less must not find the start again.
        radii -= 1e-12 * (radii + (targets**2).sum(1))
        return cls(shared, targets, known, spins, radii, np.full(len(spins), -1))

    def run(self, columns: Array, node_limit: int) -> None:
        """Search these columns until they are done or have visited `node_limit` nodes."""
        spins, radii = self.spins[columns], self.radii[columns]
        self.nodes[columns] = search(
            self.shared.factor, self.targets[columns], self.known[columns], spins, radii, node_limit
        )
        self.spins[columns], self.radii[columns] = spins, radii

    def answer(self) -> Array:
        """The best spins (m, n) in their own order."""
        found = np.empty_like(self.spins)
        found[:, self.shared.order] = self.spins
        return found


def shifts(quadratic: Array, linear: Array) -> Array:
    """For every column the δ that maximises min_x xᵀ(Q + δI)x + sᵀx − nδ, the bound of the relaxation to real x.

    It is concave in δ with slope ‖x(δ)‖² − n: bisection on the spectrum of Q, for all columns of `linear` (n, m).
    """
    eigenvalues, vectors = np.linalg.eigh(_hollow(quadratic))
    power = (vectors.T @ linear) ** 2 / 4
    spread = max(eigenvalues[-1] - eigenvalues[0], np.finfo(float).tiny)
    # Above the least δ by enough that Q + δI can be factorised.
    above = (eigenvalues - eigenvalues[0])[:, None] + 1e-6 * spread
    lowest = np.zeros(linear.shape[1])
    highest = np.sqrt(power.sum(0) / len(eigenvalues)) + spread
    for _ in range(30):
        middle = (lowest + highest) / 2
        steep = (power / (above + middle) ** 2).sum(0) > len(eigenvalues)
        lowest, highest = np.where(steep, middle, lowest), np.where(steep, highest, middle)
    best: Array = highest + 1e-6 * spread - eigenvalues[0]
    return best


def groups(shift: Array) -> list[Array]:
    """Columns that can share a factorisation: their δ lie within a factor of two, above the least."""
    size = np.log2(np.maximum(shift, np.finfo(float).tiny))
    bins = np.floor(size - size.min()).astype(np.int64)
    return [np.flatnonzero(bins == value) for value in np.unique(bins)]


def factorise(quadratic: Array, shift: float) -> Factorisation:
    """The factorisation of Q + δI."""
    shifted = _hollow(quadratic) + shift * np.eye(len(quadratic))
    order = _elimination_order(shifted)
    factor = np.linalg.cholesky(shifted[np.ix_(order, order)]).T
    return Factorisation(np.ascontiguousarray(factor), order)


def _hollow(quadratic: Array) -> Array:
    return quadratic - np.diag(np.diag(quadratic))


@compiled()
def _elimination_order(matrix: Array) -> Array:
    """Smallest pivot first, so that the spins set first (the last rows of R) have the largest diagonal."""
    n = len(matrix)
    schur = matrix.copy()
    order = np.zeros(n, np.int64)
    done = np.zeros(n, np.bool_)
    for step in range(n):
        pick = -1
        for i in range(n):
            if not done[i] and (pick < 0 or schur[i, i] < schur[pick, pick]):
                pick = i
        order[step] = pick
        done[pick] = True
        for i in range(n):
            if not done[i]:
                share = schur[i, pick] / schur[pick, pick]
                for k in range(n):
                    schur[i, k] -= share * schur[pick, k]
    return order


@compiled(fastmath={"reassoc", "contract", "nsz"})
def _centre(factor: Array, target: Array, spins: Array, k: int) -> Any:
    total = target[k]
    row = factor[k]
    for i in range(k + 1, spins.shape[0]):
        total -= row[i] * spins[i]
    return total


@compiled()
def _first_value(centre: float, fixed: float) -> tuple[float, bool]:
    """The value of a spin to try first, and whether it is the only one."""
    if fixed != 0:
        return fixed, True
    return (1.0 if centre >= 0 else -1.0), False


@compiled()
def _search_column(
    factor: Array, target: Array, fixed: Array, best: Array, radius: float, node_limit: int
) -> tuple[float, int]:
    """Spins strictly inside `radius` with the least ‖R g − y‖² into `best`; the nodes visited, −1 at the limit."""
    n = target.shape[0]
    spins = np.zeros(n)
    second = np.zeros(n, np.bool_)
    centre = np.zeros(n)
    below = np.zeros(n + 1)
    nodes = 0
    k = n - 1
    centre[k] = _centre(factor, target, spins, k)
    spins[k], second[k] = _first_value(centre[k], fixed[k])
    while True:
        nodes += 1
        if nodes > node_limit:
            return radius, -1
        residual = centre[k] - factor[k, k] * spins[k]
        cost = below[k + 1] + residual * residual
        if cost < radius:
            if k > 0:
                below[k] = cost
                k -= 1
                centre[k] = _centre(factor, target, spins, k)
                spins[k], second[k] = _first_value(centre[k], fixed[k])
                continue
            radius = cost
            best[:] = spins
        # A spin's first value is the cheaper one: where it is too far, so is the other, and a leaf has no better twin.
        k += 1
        while k < n and second[k]:
            k += 1
        if k == n:
            return radius, nodes
        second[k] = True
        spins[k] = -spins[k]


@compiled(parallel=True)
def search(factor: Array, targets: Array, fixed: Array, spins: Array, radii: Array, node_limit: int) -> Array:
    """Search every column (row of `targets`) below its radius; better spins go into `spins`, nodes are returned."""
    nodes = np.zeros(targets.shape[0], np.int64)
    for j in prange(targets.shape[0]):
        radii[j], nodes[j] = _search_column(factor, targets[j], fixed[j], spins[j], radii[j], node_limit)
    return nodes
