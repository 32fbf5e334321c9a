"""Solvers of single problems for a given time of the processor, which on an idle machine is that of the clock.

Where other processes take their share, solvers that look at the clock get a limit that is longer by the share just
measured, and are run again with another one if they had more than a tenth too much or too little.
"""

import time

import dimod
import numpy as np
from dwave.samplers import TabuSampler
from instances import bqp

from qpsbgd_qubo.solvers.portfolio.portfolio import Portfolio


def model_of(problem):
    """The problem as a dimod model; made before the clock starts, as a user of dimod has it."""
    return dimod.BinaryQuadraticModel.from_numpy_vectors(problem.linear, problem.edges(), 0.0, dimod.SPIN)


def stretch(work=0.1):
    """Seconds by the clock per second of the processor, just now."""
    cpu, begin = time.process_time(), time.perf_counter()
    while time.process_time() - cpu < work:
        pass
    return (time.perf_counter() - begin) / work


def by_clock(solve, seconds, tries=5):
    """The answer of solve(limit) and its seconds of the processor, once these are the given ones up to a tenth."""
    limit = seconds * stretch()
    for _ in range(tries):
        found, taken = solve(limit)
        if 0.9 * seconds <= taken <= 1.1 * seconds:
            break
        limit *= np.clip(seconds / taken, 0.5, 2)
    return found, taken


def auto(problem, model, seconds, *, runs=3):
    """The middle one of some runs of ours, by their energy: one alone may be lucky."""

    def run(seed):
        def solve(limit):
            begin = time.process_time()
            spins, _, _ = Portfolio(time_limit=float(limit), seed=seed).answer(problem)
            return spins[:, 0], time.process_time() - begin

        return by_clock(solve, seconds)

    return sorted(map(run, range(runs)), key=lambda run: problem.energy(run[0]))[runs // 2]


def load_all():
    """Solve two tiny problems, so that nothing is compiled or loaded while the clock runs."""
    for density in (0.05, 1.0):
        Portfolio(rounds=3).answer(bqp(60, density=density))


def annealer(sampler, most, problem, model, seconds):
    """One call of four reads or more, with as many sweeps as shorter calls before the clock starts show to fit."""

    def shortest(sweeps):
        return min(sampled(sampler, model, sweeps, 1)[1] for _ in range(2))

    sweeps, short = 10, shortest(1)
    while (longer := shortest(sweeps) - short) < 0.1 * seconds and sweeps < 10_000:
        sweeps *= 4
    per_sweep, left = max(longer, 1e-6) / sweeps, max(seconds - short, 0.1 * seconds)
    sweeps = int(np.clip(left / 4 / per_sweep, 1, most))
    return sampled(sampler, model, sweeps, max(1, round(left / (sweeps * per_sweep))))


def sampled(sampler, model, sweeps, reads):
    begin = time.process_time()
    found = sampler.sample(model, num_sweeps=sweeps, num_reads=reads).first.sample
    return np.array([found[v] for v in range(len(found))]), time.process_time() - begin


def tabu(problem, model, seconds):
    timeout, begin = int(1000 * seconds * stretch()), time.process_time()
    found = TabuSampler().sample(model, timeout=timeout, num_reads=1, seed=0).first.sample
    return np.array([found[v] for v in range(len(found))]), time.process_time() - begin
