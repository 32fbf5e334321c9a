"""What do many small QUBOs with nothing in common cost on a chip, packed, and with Ocean's composites?

Random models of 4, 8, 16, 32 or 60 variables, half of their pairs coupled, on D-Wave's mock of chips with 5 % of their
qubits broken, 100 reads of each:

- `PackedComposite`, first with its search for cliques, then again with those on disk;
- `ParallelEmbeddingComposite` with as many cliques of 60 as our search finds, since each of its embeddings must serve
  every model: with all models in one call, whose answers are counted, and in calls of as many as it has embeddings;
- `EmbeddingComposite`, one model after the other; of more than ten models its submissions are counted, not run.

QPU time is 8.5 ms per submission and 82 µs per read, the mock's figures. The mock does not anneal, so answers are not
compared. Host seconds are of processor time, the searches in processes of their own included.

    python benchmarks/solvers/many_problems.py     writes results/many_problems.json

The stored rows are by many_problems.py of earlier commits: those of a chip shared one folder of cliques, so that
"packed" of later rows found some on disk, and "tiling", which `TilingComposite` refused on every chip, is of 12f1dfc7.
"""

import os
import tempfile
from pathlib import Path

import dimod
import numpy as np
from dwave.system import EmbeddingComposite, ParallelEmbeddingComposite

from benchmarks.solvers.qpu_cost import CHIPS, PROGRAMMING_SECONDS, READ_SECONDS, READS, chip
from benchmarks.study import arguments
from qpsbgd_qubo import PackedComposite
from qpsbgd_qubo.annealers.chips import Chip
from qpsbgd_qubo.annealers.tiles import tiles_of

COUNTS, SIZES, MOST_ONE_BY_ONE = (1, 10, 100, 400), (4, 8, 16, 32, 60), 10
LARGEST = max(SIZES)


def models(count):
    generator = np.random.default_rng(count)
    sizes = generator.choice(SIZES, count)
    return [dimod.generators.gnp_random_bqm(int(n), 0.5, "SPIN", random_state=k) for k, n in enumerate(sizes)]


def measure(sampler, work):
    """Submissions, QPU time, processor time and lost answers of the work, which counts models and answers."""
    sampler.submissions = sampler.reads = 0
    begin = sum(os.times()[:4])
    wanted, answered = work()
    seconds = sum(os.times()[:4]) - begin
    figures = {"submissions": sampler.submissions, "qpu_seconds": sampler.seconds(), "host_seconds": seconds}
    return figures | {"lost": wanted - answered}


def pack_models(sampler, bqms, folder):
    composite = PackedComposite(sampler, num_reads=READS, cache=folder)
    return lambda: (len(bqms), len(composite.sample_many(bqms)))


def parallel(composite, bqms, size):
    """In calls of so many models."""
    calls = [bqms[begin : begin + size] for begin in range(0, len(bqms), size)]
    return lambda: (len(bqms), sum(len(composite.sample_multiple(call, num_reads=READS)[0]) for call in calls))


def one_by_one(sampler, bqms):
    composite = EmbeddingComposite(sampler)
    return lambda: (len(bqms), sum(bool(len(composite.sample(bqm, num_reads=READS))) for bqm in bqms))


def run(job):
    """The row of so many problems on one chip."""
    sampler, bqms, count = chip(job["chip"]), models(job["problems"]), job["problems"]
    with tempfile.TemporaryDirectory() as folder:
        row = {way: measure(sampler, pack_models(sampler, bqms, folder)) for way in ("packed", "packed_again")}
        tiles = tiles_of(Chip.of(sampler), LARGEST, folder=Path(folder))
    embeddings = [dict(enumerate(map(tuple, tile.chains()))) for tile in tiles]
    composite = ParallelEmbeddingComposite(sampler, embeddings=embeddings)
    row["embeddings"] = len(embeddings)
    row["parallel_one_call"] = measure(sampler, parallel(composite, bqms, len(bqms)))
    row["parallel"] = measure(sampler, parallel(composite, bqms, len(embeddings)))
    if count <= MOST_ONE_BY_ONE:
        row["one_by_one"] = measure(sampler, one_by_one(sampler, bqms))
    else:
        seconds = count * (PROGRAMMING_SECONDS + READS * READ_SECONDS)
        row["one_by_one"] = {"submissions": count, "qpu_seconds": seconds, "by": "count, not run"}
    return job | row


if __name__ == "__main__":
    given, rows = arguments("many_problems")
    seconds = {"programming_seconds": PROGRAMMING_SECONDS, "read_seconds": READ_SECONDS}
    rows.content["settings"] = {"reads": READS, **seconds}
    chips = [name for name in CHIPS if "broken" in name]
    rows.measured(run, given.only({"chip": name, "problems": count} for name in chips for count in COUNTS))
