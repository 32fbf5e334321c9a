"""Descent for families whose quadratic part is fixed while their linear part moves slowly, as in training.

A search begins with the sign vector, with those spins flipped that differed from it at the end of the last search, and
fields are carried on: that takes fewer flips than sign(−s) alone, and no product of all couplings with all spins.
"""

from dataclasses import replace
from typing import Any

import numpy as np

from qpsbgd_qubo.arrays import cast, copied, is_tensor, largest_of_rows, on_cpu, stack
from qpsbgd_qubo.kernels import kernels, thread_count
from qpsbgd_qubo.solvers.protocol import WarmState
from qpsbgd_qubo.solvers.search.landscape import hollow_couplings, thresholds
from qpsbgd_qubo.solvers.search.single_flips import lower_columns

COLD_START_LIMIT = 2**24
"""Couplings times columns up to which a search from sign(−s) is as fast: about a millisecond on two cores."""


def use_cold_start(num_spins: int, columns: int) -> bool:
    """Whether families of this size are as cheap to begin from sign(−s)."""
    return num_spins**2 * columns <= COLD_START_LIMIT


def prepare(state: WarmState) -> WarmState:
    """The state with what follows from its quadratic parts (count, n, n)."""
    if is_tensor(state.quadratic) and not state.quadratic.is_cpu:
        from qpsbgd_qubo.solvers.search.tensor_descent import reach_on_device

        return replace(state, reach=reach_on_device(state.quadratic))
    couplings, reach = zip(*map(hollow_couplings, state.quadratic), strict=True)
    return replace(state, couplings=stack(couplings), reach=stack(reach))


def descend(state: WarmState, linear: Any, limits: dict[str, Any]) -> tuple[WarmState, Any]:
    """Where the descent for linear parts (count, m, n) ends, and the energies of its spins, (count, m)."""
    signs = linear <= 0
    if is_tensor(linear) and not linear.is_cpu:
        from qpsbgd_qubo.solvers.search.tensor_descent import descend_on_device

        spins, energies = descend_on_device(state, linear, signs, limits)
        return replace(state, spins=spins, signs=signs, coupling_fields=None), energies
    couplings, last = state.couplings, state.spins
    spins = 2 * cast(signs, linear) - 1 if last is None else copied(last)
    fields = linear + (spins @ couplings if state.coupling_fields is None else state.coupling_fields)
    turned = None if last is None or state.signs is None else on_cpu(signs != state.signs).view(np.uint8)
    gains = thresholds(state.reach[:, None], largest_of_rows(linear))
    for block, parts in enumerate(zip(*map(on_cpu, (couplings, fields, spins, gains)), strict=True)):
        if turned is not None:
            coupled, field, start, _ = parts
            kernels.flip_marked(coupled, field, start, turned[block], thread_count())
        lower_columns(*parts, **limits)
    energies = (spins * (fields + linear)).sum(-1) / 2 + state.quadratic.diagonal(0, -2, -1).sum(-1)[:, None]
    fields -= linear
    return replace(state, spins=spins, signs=signs, coupling_fields=fields), energies
