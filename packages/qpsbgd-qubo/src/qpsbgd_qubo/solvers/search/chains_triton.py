"""Annealing of thousands of chains of one problem on a GPU, 32 chains per program.

A chain's spin is one bit of a word: program p keeps bit k of n words for its chain k, in memory of its own that stays
in the cache. Spins are coloured so that coupled ones differ. Those of one colour are flipped at the same time, which is
the same as one after the other, and their fields are computed anew from the words of their neighbours, which all 32
chains read together.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
import triton
import triton.language as tl

from qpsbgd_qubo.kernels import Array, kernels
from qpsbgd_qubo.sparse import SparseIsing

LANES = 32  # chains per program, the bits of a word
TILE, WARPS = 256, 8  # couplings that a program reads in one step, and its threads in units of 32


@dataclass(frozen=True, eq=False)
class Tiles:
    """A problem's rows, sorted into tiles of `height` spins of one colour."""

    spins: Array  # whose rows they are, (tiles · height,), n where a tile has fewer
    begins: Array  # where the couplings of each tile begin, (tiles,)
    steps: Array  # how many blocks of (height, width) couplings it has, (tiles,)
    indices: Array  # the spins coupled to, block after block; 0 where a row has fewer
    couplings: Array  # their couplings; 0 where a row has fewer
    height: int  # spins per tile
    width: int  # couplings per spin in one step

    @classmethod
    def of(cls, problem: SparseIsing, tile: int = TILE) -> Tiles:
        """The tiles of `problem`, each as high as a typical colour has spins."""
        n, indptr = problem.num_spins, problem.indptr
        degrees, colours = np.diff(indptr), np.empty(len(indptr) - 1, np.int64)
        kernels.colour(kernels.Rows(indptr, problem.indices, problem.couplings), colours)
        sizes = np.bincount(colours)
        height = min(tile, 1 << (n // len(sizes)).bit_length() - 1)
        width = max(1, min(tile // height, 1 << int(degrees.max()).bit_length() - 1 if degrees.any() else 1))
        # Of one colour, spins with about as many neighbours stand together, so that little of a tile is empty.
        order = np.lexsort((degrees, colours))
        tiles_before = np.concatenate([[0], np.cumsum(-(-sizes // height))])
        rank = np.arange(n) - np.concatenate([[0], np.cumsum(sizes)])[colours[order]]
        place = np.empty(n, np.int64)
        place[order] = height * tiles_before[colours[order]] + rank
        spins = np.full(height * tiles_before[-1], n, np.int32)
        spins[place] = np.arange(n)
        padded = np.append(degrees, 0)[spins].reshape(-1, height)
        steps = -(-padded.max(1) // width)
        begins = np.concatenate([[0], np.cumsum(steps * height * width)])
        rows = np.repeat(np.arange(n), degrees)
        within = np.arange(len(rows)) - indptr[rows]
        at = begins[place[rows] // height] + within // width * height * width
        at += place[rows] % height * width + within % width
        indices, couplings = np.zeros(begins[-1], np.int32), np.zeros(begins[-1], np.float32)
        indices[at], couplings[at] = problem.indices, problem.couplings
        return cls(spins, begins[:-1], steps, indices, couplings, height, width)


@triton.jit
def _fields(
    words, linear, begins, steps, indices, couplings, tile, spin, lane, HEIGHT: tl.constexpr, WIDTH: tl.constexpr
):
    """The fields on the spins of a tile in all chains, (HEIGHT, 32)."""
    row = tl.arange(0, HEIGHT)
    column = tl.arange(0, WIDTH)
    at = tl.load(begins + tile) + row[:, None] * WIDTH + column[None, :]
    total = tl.zeros([HEIGHT, WIDTH, 32], tl.float32)
    for _ in range(tl.load(steps + tile)):
        word = tl.load(words + tl.load(indices + at))
        coupling = tl.load(couplings + at)
        bit = (word[:, :, None] >> lane[None, None, :]) & 1
        total += tl.where(bit != 0, coupling[:, :, None], -coupling[:, :, None])
        at += HEIGHT * WIDTH
    return tl.sum(total, axis=1) + tl.load(linear + spin)[:, None]


@triton.jit
def _anneal(
    all_words,
    linear,
    spins,
    begins,
    steps,
    indices,
    couplings,
    temperatures,
    energies,
    n,
    tiles,
    sweeps,
    seed,
    HEIGHT: tl.constexpr,
    WIDTH: tl.constexpr,
):
    program = tl.program_id(0)
    words = all_words + program.to(tl.int64) * (n + 1)
    row = tl.arange(0, HEIGHT)
    lane = tl.arange(0, 32)
    # xorshift32, one state per spin of a tile and chain; 0 would stay 0.
    state = tl.randint(seed, program * HEIGHT * 32 + row[:, None] * 32 + lane[None, :]).to(tl.uint32) | 1
    for sweep in range(sweeps):
        temperature = tl.load(temperatures + sweep)
        for tile in range(tiles):
            spin = tl.load(spins + tile * HEIGHT + row)
            field = _fields(words, linear, begins, steps, indices, couplings, tile, spin, lane, HEIGHT, WIDTH)
            bit = (tl.load(words + spin)[:, None] >> lane[None, :]) & 1
            state ^= state << 13
            state ^= state >> 17
            state ^= state << 5
            uniform = ((state >> 8).to(tl.float32) + 0.5) * 5.9604644775390625e-08
            gain = tl.where(bit != 0, field, -field)
            bit ^= (2 * gain > temperature * tl.log(uniform)).to(tl.int32)
            # All threads have read the words of this tile before any is written, and see them written before the next.
            tl.debug_barrier()
            tl.store(words + spin, tl.sum(bit << lane[None, :], axis=1))
            tl.debug_barrier()
    twice = tl.zeros([32], tl.float64)
    for tile in range(tiles):
        spin = tl.load(spins + tile * HEIGHT + row)
        field = _fields(words, linear, begins, steps, indices, couplings, tile, spin, lane, HEIGHT, WIDTH)
        bit = (tl.load(words + spin)[:, None] >> lane[None, :]) & 1
        both = field + tl.load(linear + spin)[:, None]
        twice += tl.sum(tl.where(spin[:, None] < n, tl.where(bit != 0, both, -both), 0.0), axis=0).to(tl.float64)
    tl.store(energies + program * 32 + lane, 0.5 * twice)


def anneal(
    problem: SparseIsing, temperatures: Array, *, chains: int, seed: int, device: torch.device | str = "cuda"
) -> tuple[Array, Array]:
    """The spins of the best chain, (n,) int8, and the energies of all, without a constant; a sweep per temperature."""
    tiles, programs, n = Tiles.of(problem), -(-chains // LANES), problem.num_spins
    generator = np.random.default_rng(seed)
    start = generator.integers(-(2**31), 2**31, (programs, n + 1), dtype=np.int32)
    linear = np.append(problem.linear, 0).astype(np.float32)
    parts = (start, linear, tiles.spins, tiles.begins, tiles.steps, tiles.indices, tiles.couplings)
    words, *arrays = (torch.from_numpy(part).to(device) for part in parts)
    energies = torch.empty(programs * LANES, dtype=torch.float64, device=device)
    schedule = torch.from_numpy(np.asarray(temperatures, np.float32)).to(device)
    with torch.cuda.device_of(words):
        _anneal[(programs,)](
            *(words, *arrays, schedule, energies, n, len(tiles.begins), len(schedule)),
            2 * int(generator.integers(2**30)) + 1,  # never a multiple of 16, for which Triton would compile anew
            HEIGHT=tiles.height,
            WIDTH=tiles.width,
            num_warps=WARPS,
        )
    best = int(energies.argmin())
    bits = (words[best // LANES, :n].cpu().numpy() >> (best % LANES)) & 1
    return (2 * bits - 1).astype(np.int8), energies.cpu().numpy()
