"""What the kernels compute. Arrays named in the past tense or as "written" are changed in place.

Dense kernels take a column of a family per row: `spins` and `fields` have shape (m, n), `couplings` is 2 Q with a zero
diagonal, `fields` = s + couplings · spins; a flip of spin i changes the energy by −2 · spins[i] · fields[i]. Kernels
end early, with what they have, once `stop` is set.
"""

from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]

# Dense columns, in single or double precision.

def search(
    couplings: Array,
    fields: Array,
    spins: Array,
    threshold: Array,
    flips: Array,
    max_flips: int,
    patience: int,
    tenure: int,
    seed: int,
    stop: Array,
    threads: int,
) -> None:
    """Lower every column in place, as `single_flips.lower_columns` says; writes the flips of each, (m,), int64.

    A spin flipped in a move stays tabu for tenure + (hash of move, column and seed) % max(6, tenure // 2) moves.
    """

def search_layer(
    couplings: Array,
    diagonal: Array,
    linear: Array,
    coupling_sums: Array,
    starts: Array,
    fields: Array,
    threshold: Array,
    best: Array,
    patience: int,
    tenure: int,
    kicks: int,
    forced: int,
    seed: int,
    threads: int,
) -> None:
    """Write the `best` spins for every column, (m, n), from several starts.

    `starts` and `fields` (k, m, n) are overwritten. `diagonal` (n,) is that of Q, `linear` (m, n) is s,
    `coupling_sums` (n,) are the sums of the rows of |couplings|; the rest are those of `search`. Where the best spins
    differ from the first start in more than an eighth, a tenth of them is flipped and the search repeated, `kicks`
    times. Then a spin of the best is flipped and held while the others follow, `forced` times.
    """

def anneal(
    couplings: Array,
    fields: Array,
    spins: Array,
    sites: Array,
    temperatures: Array,
    states: Array,
    sweeps: Array,
    stop: Array,
    threads: int,
) -> None:
    """Metropolis sweeps of every column over `sites` (int32), one per temperature; writes the sweeps made, (m,) int64.

    `states` (m,), uint64, are the seeds of the random numbers, xorshift64*.
    """

def anneal_slices(
    couplings: Array,
    fields: Array,
    spins: Array,
    ties: Array,
    scale: Array,
    temperature: float,
    states: Array,
    threads: int,
) -> None:
    """Path-integral sweeps of every column, one per tie between slices; `spins` and `fields` are (m, P, n).

    Energies of column j are in units of scale[j], which includes the number of slices.
    """

def flip_marked(couplings: Array, fields: Array, spins: Array, marked: Array, threads: int) -> None:
    """Flip every spin (m, n) that is marked, uint8; fields follow."""

def fields_of(couplings: Array, linear: Array, spins: Array, fields: Array) -> None:
    """Write the local fields of one column."""

def relax(twice: Array, slopes: Array, points: Array, passes: int, threads: int) -> None:
    """Coordinate descent of every row of `points` (m, n) in the box; `slopes` = s + 2Ax follow; `twice` is 2A."""

def round_down(factor: Array, targets: Array, spins: Array, threads: int) -> None:
    """Set `spins` (m, n) from the last to the first; `factor` is Rᵀ and `targets` = R x, which is used up."""

# Proofs, in double precision; `linear` (m, n), and `fixed` (m, n) is 0 where a spin is open.

def fix_dominated(couplings: Array, linear: Array, fixed: Array, stop: Array, threads: int) -> None:
    """Write the spins that every optimum must have, 0 where open.

    A spin whose field outweighs all its couplings to open spins is fixed; its couplings then become fields of the
    others.
    """

def complete(
    couplings: Array, linear: Array, fixed: Array, spins: Array, done: Array, stop: Array, threads: int
) -> None:
    """Set the open spins of every column of `spins` (m, n) to their best values; writes whether that was done, (m,)."""

def exhaust(couplings: Array, fields: Array, spins: Array, stop: Array, threads: int) -> bool:
    """Write the best of all spins (k,); whether all were tried and their energies are numbers."""

def decode(
    couplings: Array,
    linear: Array,
    fixed: Array,
    spins: Array,
    shift: float,
    node_limit: int,
    nodes: Array,
    stop: Array,
    threads: int,
) -> None:
    """The sphere decoder of `solvers/exact/sphere_decoder.py`; writes the nodes of each column, −1 where it gave up."""

# One sparse problem; `spins` (n,) is int8.

class Rows:
    """Couplings in compressed rows, copied: `indptr` int64, `indices` int32, `couplings` float64."""

    def __init__(self, indptr: Array, indices: Array, couplings: Array) -> None: ...

def anneal_sparse(
    rows: Rows, linear: Array, spins: Array, sites: Array, temperatures: Array, state: int, stop: Array
) -> int:
    """Metropolis sweeps of one chain over `sites`, one per temperature; the sweeps made."""

def anneal_lanes(
    rows: Rows, linear: Array, spins: Array, sites: Array, temperatures: Array, state: int, stop: Array
) -> int:
    """`anneal_sparse` of sixteen chains, the bits of `spins`, uint16; each step has one random number for all."""

def harvest(rows: Rows, linear: Array, thresholds: Array, chains: Array, spins: Array, stop: Array) -> float:
    """Merge every chain, a row of `chains`, into `spins` and bring them to a local minimum; their energy.

    The spins in which a chain differs fall into clusters that no coupling connects; each is taken over unless that
    raises the energy, so the result is no higher than either. Without fields h, an answer and its negative are the
    same, and the nearer of the two is merged. Once `stop` is set, the first chain alone is merged.
    """

def tabu_sparse(
    rows: Rows, linear: Array, spins: Array, block: int, moves: int, tenure: int, state: int, stop: Array
) -> float:
    """Make the best flip that was not made in the last moves, uphill too; ends with the lowest spins met; their energy.

    The best flip of every `block` of spins is kept, which does not change the moves.
    """

def sweep_chip(rows: Rows, h: Array, spins: Array, schedule: Array, states: Array, threads: int) -> None:
    """Metropolis sweeps of every read; `spins` is (reads, slices, n), a row of `schedule` (weight, tie, T); float32."""

def reduce(rows: Rows, linear: Array, stop: Array) -> tuple[Array, ...]:
    """What is left of a problem without the spins that follow from others, as compressed rows and fields.

    Then where its spins stand, and what was eliminated: the parts of a `Reduction`.
    """

def complete_reduced(spins: Array, gone: Array, neighbours: Array, weights: Array, fields: Array) -> None:
    """Set the spins that `reduce` eliminated to their best values, the last first."""

# Moves within one-hot groups of a sparse problem.

class Groups:
    """Groups (`begins`, `members`) of which exactly one spin is +1, the first `bases` of them without common spins."""

    scale: float
    def __init__(self, rows: Rows, linear: Array, begins: Array, members: Array, bases: int) -> None: ...

def find_groups(rows: Rows, linear: Array, stop: Array) -> tuple[Array, Array, int]:
    """Where the groups of a problem begin, their members, and how many are bases; none where it has none."""

def anneal_groups(
    groups: Groups, spins: Array, sites: Array, temperatures: Array, moves: int, fresh: bool, state: int, stop: Array
) -> float:
    """Anneal by moves within groups, from random places if `fresh`; the energy."""

def tabu_groups(groups: Groups, spins: Array, moves: int, tenure: int, state: int, stop: Array) -> float:
    """Tabu moves within groups; the energy of the lowest spins met, which it ends with."""
