"""Solvers of single problems for a given time of the processor, which on an idle machine is that of the clock.

Where other processes take their share, solvers that look at the clock get a limit that is longer by the share just
measured, and are run again with another one if they had more than a tenth too much or too little.
"""

import time
from functools import partial

import dimod
import numpy as np
import openjij
from dwave.samplers import SimulatedAnnealingSampler, TabuSampler

from benchmarks.solvers import peers
from benchmarks.solvers.instances import bqp
from benchmarks.solvers.peers import sampler_function
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
        answer, taken = solve(limit)
        if 0.9 * seconds <= taken <= 1.1 * seconds:
            break
        limit *= np.clip(seconds / taken, 0.5, 2)
    return answer, taken


def with_cpu_time(work):
    """What work() returns, and its seconds of the processor."""
    begin = time.process_time()
    answer = work()
    return answer, time.process_time() - begin


def auto(problem, model, seconds, *, runs=3):
    """The middle one of some runs of ours, by their energy: one alone may be lucky."""

    def solve(seed, limit):
        return with_cpu_time(lambda: Portfolio(time_limit=float(limit), seed=seed).answer(problem)[0][:, 0])

    answers = [by_clock(partial(solve, seed), seconds) for seed in range(runs)]
    return sorted(answers, key=lambda run: problem.energy(run[0]))[runs // 2]


def load_all():
    """Solve two tiny problems, so that nothing is compiled or loaded while the clock runs."""
    for density in (0.05, 1.0):
        Portfolio(rounds=3).answer(bqp(60, density=density))


def annealer(sampler, most, problem, model, seconds):
    """One call of four reads or more, with as many sweeps as shorter calls before the clock starts show to fit."""

    def run(sweeps, reads):
        return with_cpu_time(partial(sampler_function(sampler, num_sweeps=sweeps, num_reads=reads), model))

    def shortest(sweeps):
        return min(run(sweeps, 1)[1] for _ in range(2))

    sweeps, short = 10, shortest(1)
    while (longer := shortest(sweeps) - short) < 0.1 * seconds and sweeps < 10_000:
        sweeps *= 4
    per_sweep, left = max(longer, 1e-6) / sweeps, max(seconds - short, 0.1 * seconds)
    sweeps = int(np.clip(left / 4 / per_sweep, 1, most))
    return run(sweeps, max(1, round(left / (sweeps * per_sweep))))


def tabu(problem, model, seconds):
    timeout = int(1000 * seconds * stretch())
    return with_cpu_time(partial(sampler_function(TabuSampler(), timeout=timeout, num_reads=1, seed=0), model))


def bifurcation(problem, model, seconds):
    """Runs of 32 agents until the time is over; the best of them."""

    def run():
        longer, begin, answers = stretch(), time.process_time(), []
        while (left := seconds - (time.process_time() - begin)) > 0.1 * seconds or not answers:
            answers.append(
                peers.bifurcation(seed=len(answers), agents=32, max_steps=1000, timeout=longer * left)(model)
            )
        return min(answers, key=problem.energy)

    return with_cpu_time(run)


def gurobi(problem, model, seconds):
    return with_cpu_time(partial(peers.gurobi(seconds * stretch()), model))


SOLVERS = {
    "auto": auto,
    "dwave SA": partial(annealer, SimulatedAnnealingSampler(), 10_000),
    "dwave tabu": tabu,
    "OpenJij SA": partial(annealer, openjij.SASampler(), 1_000),
    "simulated-bifurcation": bifurcation,
    "gurobi": gurobi,
}
"""Functions of a problem, its dimod model and seconds, which return spins and the seconds that they took."""
