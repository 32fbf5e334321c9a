"""Annealing of sixteen chains of one sparse problem at once: a spin's sixteen copies are one vector of the processor.

Chain k is column k of `spins` and of their fields, both (n, 16). numba does not turn such loops into vector
instructions by itself, because it cannot know that the arrays do not overlap; so both inner operations are written in
LLVM's own terms.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numba import types

from qpsbgd.solvers.compilation import compiled, instruction

Array = np.ndarray[Any, Any]

LANES = 16
_VECTOR = ir.VectorType(ir.FloatType(), LANES)
_ZERO = ir.Constant(_VECTOR, [0.0] * LANES)
_START = ir.Constant(ir.IntType(64), 0)

_DRAWS = -np.log(np.random.default_rng(0).permutation((np.arange(65536) + 0.5) / 65536)).astype(np.float32)
EXPONENTIAL = np.concatenate([_DRAWS, _DRAWS[:LANES]])
"""Exponential variates −log u in random order; sixteen in a row from a random place on are the draws of one step."""


def _place(context: Any, builder: Any, kind: Any, array: Any, index: Any) -> Any:
    """A pointer to the sixteen numbers from `index` on."""
    data = context.make_array(kind)(context, builder, array).data
    return builder.bitcast(builder.gep(data, [index]), _VECTOR.as_pointer())


def _everywhere(builder: Any, value: Any) -> Any:
    """A vector of sixteen times the same number."""
    nothing = ir.Constant(_VECTOR, ir.Undefined)
    first = builder.insert_element(nothing, value, ir.Constant(ir.IntType(32), 0))
    return builder.shuffle_vector(first, nothing, ir.Constant(ir.VectorType(ir.IntType(32), LANES), [0] * LANES))


@instruction
def _metropolis(
    typing: Any, spins: Any, fields: Any, draws: Any, change: Any, place: Any, draw: Any, half_temperature: Any
) -> Any:
    """Flip those of the sixteen spins from `place` on that Metropolis accepts; `change` becomes 0, −2 or 2 for each.

    Accepted is −2 g f < T · draw. Returns sixteen bits, one per flip.
    """
    signature = types.uint16(spins, fields, draws, change, types.int64, types.int64, types.float32)

    def generate(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        spins, fields, draws, change, place, draw, half_temperature = values
        kinds = signature.args
        spin_place = _place(context, builder, kinds[0], spins, place)
        spin = builder.load(spin_place, align=4)
        field = builder.load(_place(context, builder, kinds[1], fields, place), align=4)
        drawn = builder.load(_place(context, builder, kinds[2], draws, draw), align=4)
        excess = builder.fadd(
            builder.fmul(spin, field), builder.fmul(drawn, _everywhere(builder, half_temperature)), flags=("contract",)
        )
        accepted = builder.fcmp_ordered(">", excess, _ZERO)
        changed = builder.select(accepted, builder.fmul(spin, ir.Constant(_VECTOR, [-2.0] * LANES)), _ZERO)
        builder.store(changed, _place(context, builder, kinds[3], change, _START), align=4)
        builder.store(builder.fadd(spin, changed), spin_place, align=4)
        return builder.bitcast(accepted, ir.IntType(LANES))

    return signature, generate


@instruction
def _add(typing: Any, fields: Any, place: Any, change: Any, start: Any, coupling: Any) -> Any:
    """fields[place : place + 16] += coupling · change[start : start + 16], both arrays flat."""
    signature = types.void(fields, types.int64, change, types.int64, types.float32)

    def generate(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        fields, place, change, start, coupling = values
        target = _place(context, builder, signature.args[0], fields, place)
        changed = builder.load(_place(context, builder, signature.args[2], change, start), align=4)
        product = builder.fmul(changed, _everywhere(builder, coupling), flags=("contract",))
        builder.store(builder.fadd(builder.load(target, align=4), product, flags=("contract",)), target, align=4)
        return context.get_dummy_value()

    return signature, generate


@compiled(nogil=True, error_model="numpy")
def anneal(
    indptr: Array,
    indices: Array,
    couplings: Array,
    fields: Array,
    spins: Array,
    sites: Array,
    temperatures: Array,
    draws: Array,
    state: np.uint64,
    stop: Array,
) -> int:
    """Metropolis sweeps over `sites` in all chains, one per temperature, until `stop` is set; the sweeps made.

    Args:
        indptr: Rows of the problem, as `indices` and `couplings`.
        indices: Their columns.
        couplings: Their values, float32.
        fields: h for every chain, (n, 16), float32; overwritten.
        spins: The chains, (n, 16), float32.
        sites: The spins that are swept, int32.
        temperatures: One per sweep.
        draws: `EXPONENTIAL`.
        state: Of the random numbers.
        stop: A flag from `deadline`.
    """
    n = len(spins)
    change = np.zeros(LANES, np.float32)
    for i in range(n):
        if i & 1023 == 0 and stop[0]:
            return 0
        for at in range(indptr[i], indptr[i + 1]):
            _add(fields, LANES * i, spins, LANES * np.int64(indices[at]), couplings[at])
    sweeps = 0
    for temperature in temperatures:
        half = np.float32(temperature / 2)
        for count in range(len(sites)):
            if count & 1023 == 0 and stop[0]:
                return sweeps
            i = sites[count]
            # xorshift64*, one draw for all chains
            state ^= state >> np.uint64(12)
            state ^= state << np.uint64(25)
            state ^= state >> np.uint64(27)
            draw = np.int64((state * np.uint64(2685821657736338717)) >> np.uint64(48))
            if _metropolis(spins, fields, draws, change, LANES * np.int64(i), draw, half):
                for at in range(indptr[i], indptr[i + 1]):
                    _add(fields, LANES * np.int64(indices[at]), change, 0, couplings[at])
        sweeps += 1
    return sweeps
