"""Annealing of sixteen chains of one sparse problem at once: a spin's sixteen fields are one vector of the processor.

Chain k is column k of the fields (n, 16), and bit k of `spins` (n,), set for +1: what a sweep touches should stay in
the processor's cache. numba does not turn such loops into vector instructions by itself, because it cannot know that
the arrays do not overlap; so the inner operations are written in LLVM's own terms.
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
_BITS = ir.VectorType(ir.IntType(1), LANES)
_CACHE_LINE = 64

_PLACES = 4096
_DRAWS = -np.log(np.random.default_rng(0).permutation((np.arange(_PLACES) + 0.5) / _PLACES)).astype(np.float32)
EXPONENTIAL = np.concatenate([_DRAWS, _DRAWS[:LANES]])
"""Exponential variates −log u in random order; sixteen in a row from a random place on are the draws of one step."""


def first_fields(linear: Array) -> Array:
    """The fields h of every chain, to which `anneal` adds the couplings: (n, 16), float32, a row per cache line."""
    room = np.empty(LANES * len(linear) * 4 + _CACHE_LINE, np.uint8)
    begin = -room.ctypes.data % _CACHE_LINE
    fields = room[begin : begin + LANES * len(linear) * 4].view(np.float32).reshape(-1, LANES)
    fields[:] = linear[:, None]
    return fields


def bits_of(spins: Array) -> Array:
    """Chains that are all the same."""
    return np.where(spins > 0, np.uint16(0xFFFF), np.uint16(0))


def chains_of(spins: Array) -> Array:
    """The chains as rows of ±1, (16, n), int8."""
    bits = np.unpackbits(spins.view(np.uint8).reshape(-1, LANES // 8), axis=1, bitorder="little")
    return np.ascontiguousarray(bits.T).view(np.int8) * np.int8(2) - np.int8(1)


def _constant(value: float) -> Any:
    return ir.Constant(_VECTOR, [value] * LANES)


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
def _accepted(typing: Any, spins: Any, fields: Any, place: Any, draws: Any, draw: Any, half_temperature: Any) -> Any:
    """Which of sixteen spins Metropolis flips, as bits: those with −2 g f < T · draw, f from `place` on."""
    signature = types.uint16(types.uint16, fields, types.int64, draws, types.int64, types.float32)

    def generate(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        spins, fields, place, draws, draw, half_temperature = values
        kinds = signature.args
        field = builder.load(_place(context, builder, kinds[1], fields, place), align=4)
        drawn = builder.load(_place(context, builder, kinds[3], draws, draw), align=4)
        up = builder.bitcast(spins, _BITS)
        gain = builder.select(up, field, builder.fsub(_constant(-0.0), field))
        threshold = builder.fmul(drawn, _everywhere(builder, half_temperature))
        accepted = builder.fcmp_ordered(">", builder.fadd(gain, threshold, flags=("contract",)), _constant(0.0))
        return builder.bitcast(accepted, ir.IntType(LANES))

    return signature, generate


@instruction
def _set_change(typing: Any, change: Any, flips: Any, up: Any) -> Any:
    """Write 2 into `change` where both bits are set, −2 where only that of `flips` is, 0 elsewhere."""
    signature = types.void(change, types.uint16, types.uint16)

    def generate(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        change, flips, up = values
        signs = builder.select(builder.bitcast(up, _BITS), _constant(2.0), _constant(-2.0))
        changed = builder.select(builder.bitcast(flips, _BITS), signs, _constant(0.0))
        start = ir.Constant(ir.IntType(64), 0)
        builder.store(changed, _place(context, builder, signature.args[0], change, start), align=4)
        return context.get_dummy_value()

    return signature, generate


@instruction
def _add(typing: Any, fields: Any, place: Any, change: Any, coupling: Any) -> Any:
    """fields[place : place + 16] += coupling · change, `fields` flat."""
    signature = types.void(fields, types.int64, change, types.float32)

    def generate(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        fields, place, change, coupling = values
        start = ir.Constant(ir.IntType(64), 0)
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
        fields: From `first_fields`; overwritten.
        spins: The chains, (n,), uint16; overwritten.
        sites: The spins that are swept, int32.
        temperatures: One per sweep.
        draws: `EXPONENTIAL`.
        state: Of the random numbers.
        stop: A flag from `deadline`.
    """
    n, change = len(spins), np.zeros(LANES, np.float32)
    for i in range(n):
        if i & 1023 == 0 and stop[0]:
            return 0
        _set_change(change, np.uint16(0xFFFF), spins[i])
        for at in range(indptr[i], indptr[i + 1]):
            _add(fields, LANES * np.int64(indices[at]), change, couplings[at] / np.float32(2))
    sweeps = 0
    for temperature in temperatures:
        half = np.float32(temperature / 2)
        for count in range(len(sites)):
            if count & 1023 == 0 and stop[0]:
                return sweeps
            site = np.int64(sites[count])
            # xorshift64*, one draw for all chains
            state ^= state >> np.uint64(12)
            state ^= state << np.uint64(25)
            state ^= state >> np.uint64(27)
            draw = np.int64((state * np.uint64(2685821657736338717)) >> np.uint64(52))
            flips = _accepted(spins[site], fields, LANES * site, draws, draw, half)
            if flips:
                spins[site] ^= flips
                _set_change(change, flips, spins[site])
                for at in range(indptr[site], indptr[site + 1]):
                    _add(fields, LANES * np.int64(indices[at]), change, couplings[at])
        sweeps += 1
    return sweeps
