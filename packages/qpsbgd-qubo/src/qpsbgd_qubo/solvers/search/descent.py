"""Best-improvement descent: flip the spin that lowers the energy most, until none does; tabu moves go on from there."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from qpsbgd_qubo.arrays import full, is_tensor
from qpsbgd_qubo.family import QuboFamily, Solution
from qpsbgd_qubo.kernels import Array
from qpsbgd_qubo.options import FLAG, SEED, Number, check_options
from qpsbgd_qubo.solvers.deadline import deadline
from qpsbgd_qubo.solvers.protocol import Solver, State, WarmState
from qpsbgd_qubo.solvers.search import warm_start
from qpsbgd_qubo.solvers.search.landscape import better_of, random_spins, sign_start
from qpsbgd_qubo.solvers.search.single_flips import local_search, most_flips


@dataclass(frozen=True)
class Descent(Solver):
    """Single flips from sign(−s), best improvement first, all columns side by side.

    Args:
        max_flips: Most flips per column in one search, tabu moves included. None for no limit.
        tabu: From the local minimum, continue with the best flip that is not tabu, uphill too, until this many
            moves have found nothing better; 0 for none.
        tenure: Moves for which a flip is tabu, and up to half as many more, at least 5. Short ones suit the
            correlated inputs of layers; large sparse problems need 10 to 30.
        restarts: Also search from this many random starts and keep the best.
        seed: Seed of the random starts and of the tabu tenures.
        warm: `solve(state, linear)` starts from the state's last spins: with momentum the families of training change
            slowly. See `qpsbgd_qubo.solvers.search.warm_start`; `solve(family)` starts at sign(−s).
    """

    max_flips: int | None = None
    tabu: int = 0
    tenure: int = 2
    restarts: int = 0
    seed: int = 0
    warm: bool = False

    def __post_init__(self) -> None:
        moves, tenure = Number(whole=True, least=0, most=2**62), Number(whole=True, least=0, most=2**24)
        check_options(self, max_flips=replace(moves, optional=True), tabu=moves, tenure=tenure)
        check_options(self, restarts=moves, seed=SEED, warm=FLAG)
        if self.warm and self.restarts:
            raise ValueError("warm goes with one search per step: without restarts")

    def _solve(self, family: QuboFamily) -> Solution:
        """A local minimum per column, or the spins reached when the flips are used up."""
        return self._best(family, local_search)

    def _solve_on_gpu(self, family: QuboFamily) -> Solution | None:
        """The same by Triton: the same moves, of families in single precision of up to 8192 spins."""
        from qpsbgd_qubo.solvers.search import tensor_descent

        return self._best(family, tensor_descent.local_search)

    def _best(self, family: QuboFamily, search: Callable[..., Solution]) -> Solution:
        offset, family = family.offset, family.without_offset()
        generator, limits = np.random.default_rng(self.seed), self.limits(family.num_spins)
        with deadline(None) as passed:
            solution = search(family, sign_start(family), **limits, stop=passed)
            for _ in range(self.restarts):
                other = search(family, random_spins(family, generator), **limits, stop=passed)
                solution = better_of(solution, other)
        return solution.with_offset(offset)

    def init(self, quadratic: Any, last: State | None = None) -> State:
        """With the spins of `last`, if it is warm."""
        if not self.warm:
            return super().init(quadratic)
        state = WarmState(quadratic.reshape(-1, *quadratic.shape[-2:]))
        if isinstance(last, WarmState):
            state = replace(state, spins=last.spins, signs=last.signs)
        return warm_start.prepare(state)

    def _solve_from(self, state: State, linear: Any) -> Solution:
        if not isinstance(state, WarmState):
            return super()._solve_from(state, linear)
        n, m = linear.shape[-2:]
        rows = linear.reshape(-1, n, m).swapaxes(-2, -1)
        rows = rows.contiguous() if is_tensor(rows) else np.ascontiguousarray(rows)
        state, energies = warm_start.descend(state, rows, self.limits(n))
        spins, energies = state.spins.swapaxes(-2, -1).reshape(linear.shape), energies.reshape(*linear.shape[:-2], m)
        unproven = full(tuple(energies.shape), False, like=energies, dtype="bool")
        return Solution(spins, energies, unproven, {"solver": "descent"}, state)

    def asynchronous(self, like: Any, num_spins: int) -> bool:
        """Where warm, by Triton."""
        if not self.warm or not is_tensor(like):
            return False
        from qpsbgd_qubo.solvers.search.tensor_descent import triton_kernels

        return triton_kernels(like, num_spins) is not None

    def limits(self, num_spins: int) -> dict[str, Any]:
        """The limits of one search over this many spins, for the kernels."""
        most = most_flips(self.max_flips, num_spins, self.tabu)
        return {"max_flips": most, "patience": self.tabu, "tenure": self.tenure, "seed": self.seed}


def best_of_reads(
    family: QuboFamily, reads: int, search: Callable[[Array, Array], Solution], generator: np.random.Generator
) -> tuple[Solution, int]:
    """The best of plain descent and of searches from the sign vector and random spins; and how many Ctrl-C has left."""
    solution, made = local_search(family, sign_start(family)), 0
    with deadline(None) as passed:
        while made < reads and not passed[0]:
            start = random_spins(family, generator) if made else sign_start(family)
            solution, made = better_of(solution, search(start, passed)), made + 1
    return solution, made
