"""Is every kernel at least as fast as it was under numba, and what does the first call of a process cost?

The last commit with numba is taken from git's history as a package of another name. Each kernel's calls alternate with
those of its old version in one process, since clocks change from one second to the next; the figures are medians in
microseconds, on one thread (`threads`: two), of arrays that lie in memory as torch's do, and the median ratio
of two calls in a row. The first call is timed in
fresh processes, numba's with a warm cache on disk.

    pip install numba==0.68.1
    python benchmarks/native.py              writes benchmarks/results/native.json
    python benchmarks/native.py --only tabu  prints the kernels with that word in their names
    python benchmarks/native.py --processes  prints the first calls and the command line of this version alone
"""

import argparse
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import textwrap
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
TARGET = Path(__file__).parent / "results" / "native.json"
NUMBA = "10a66f6"
"""The last commit with numba."""
ROUNDS = 3


def dense(n, m, dtype="float32", seed=0):
    """Couplings, fields and spins of a random layer at its sign vector."""
    import numpy as np

    generator = np.random.default_rng(seed)
    rows = generator.standard_normal((n // 2 + 8, n))
    rows /= np.square(rows).sum(1, keepdims=True)
    couplings = 2 * rows.T @ rows
    np.fill_diagonal(couplings, 0)
    linear = 0.3 * (rows.T @ generator.standard_normal((len(rows), m))).T
    spins = np.where(linear <= 0, 1.0, -1.0)
    parts = (couplings, linear, linear + spins @ couplings, spins)
    return [fresh(part.astype(dtype)) for part in parts]


def fresh(array):
    """A copy that begins at a line of the cache, as torch's tensors do and numpy's arrays do not."""
    import torch

    return torch.from_numpy(array).clone(memory_format=torch.contiguous_format).numpy()


def graph(n, degree, *, old, seed=0):
    import numpy as np

    if old:
        from qpsbgd_numba.qubo.sparse import SparseIsing
    else:
        from qpsbgd_qubo.sparse import SparseIsing

    generator = np.random.default_rng(seed)
    ends = generator.integers(0, n, (2, n * degree // 2))
    return SparseIsing.from_edges(n, *ends, generator.choice([-1.0, 1.0], n * degree // 2))


def cases(old):
    """Name → a function without arguments that runs the kernel once, on fresh copies of what it overwrites."""
    import numpy as np

    never, count = np.zeros(1, np.uint8), {"threads": 2}
    if old:
        import numba
        from qpsbgd_numba.deploy import popcount
        from qpsbgd_numba.qubo import binary_map_numba
        from qpsbgd_numba.solvers.annealer import virtual_qpu
        from qpsbgd_numba.solvers.exact import exhaustion, fixing, sphere_decoder
        from qpsbgd_numba.solvers.search import kernels, lanes, layer_kernels, rounding, sparse_kernels
        from qpsbgd_numba.solvers.search.reduction import Reduction
    else:
        from qpsbgd_qubo.kernels import kernels as native
        from qpsbgd_qubo.solvers.search.chains import SparseModel
        from qpsbgd_qubo.solvers.search.reduction import Reduction
        from qpsbgd_runtime.integer_steps import integer_layer
        from qpsbgd_runtime.operations import Convolution, Value, Weights, Window
    found = {}

    def case(name, threads=1):
        def add(work):
            def run():
                if old:
                    numba.set_num_threads(threads)
                count["threads"] = threads
                work()

            found[name] = run

        return add

    for n, m, patience, dtype in (
        (16, 4, 0, "float32"),
        (128, 128, 0, "float32"),
        (128, 128, 100, "float32"),
        (128, 128, 100, "float64"),
        (1024, 8, 500, "float32"),
    ):
        couplings, linear, fields, spins = dense(n, m, dtype)
        threshold = np.full(m, 1e-6, dtype)

        for threads in (1, 2) if (n, patience, dtype) == (128, 100, "float32") else (1,):

            @case(f"search {n}x{m} tabu {patience} {dtype} threads {threads}", threads)
            def _(couplings=couplings, fields=fields, spins=spins, threshold=threshold, patience=patience):
                work = couplings, fresh(fields), fresh(spins), threshold
                if old:
                    kernels.search(*work, 10**6, patience, 2, 0, never)
                else:
                    native.search(*work, np.zeros(len(spins), np.int64), 10**6, patience, 2, 0, never, count["threads"])

        diagonal, pulls = np.ones(n, dtype), np.abs(couplings).sum(1)

        if patience:

            @case(f"search_layer {n}x{m} {dtype}")
            def _(
                couplings=couplings,
                linear=linear,
                fields=fields,
                spins=spins,
                threshold=threshold,
                diagonal=diagonal,
                pulls=pulls,
            ):
                starts, local = np.stack([spins, -spins]), np.stack([fields, 2 * linear - fields])
                if old:
                    layer_kernels.search_layer(
                        couplings, diagonal, linear, pulls, starts, local, threshold, 30, 2, 4, 8, 0
                    )
                else:
                    native.search_layer(
                        couplings,
                        diagonal,
                        linear,
                        pulls,
                        starts,
                        local,
                        threshold,
                        np.empty_like(linear),
                        30,
                        2,
                        4,
                        8,
                        0,
                        count["threads"],
                    )

        temperatures = np.geomspace(0.5, 0.05, 20).astype(dtype) * np.sqrt(np.square(couplings).sum(1).mean())
        states = np.arange(1, m + 1, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
        sites = np.arange(n, dtype=np.int32)

        @case(f"anneal {n}x{m} {dtype} patience {patience}")
        def _(
            couplings=couplings,
            fields=fields,
            spins=spins,
            threshold=threshold,
            temperatures=temperatures,
            states=states,
            sites=sites,
        ):
            work = couplings, fresh(fields), fresh(spins)
            if old:
                kernels.anneal(*work, temperatures, threshold, kernels.LOG_UNIFORM, states)
            else:
                made = np.zeros(len(spins), np.int64)
                native.anneal(*work, sites, temperatures, states, made, never, count["threads"])
                native.search(*work, threshold, made, 10**6, 0, 2, 0, never, count["threads"])

    couplings, linear, fields, spins = dense(1000, 1)
    temperatures, sites = np.linspace(1, 0.08, 50).astype(np.float32), np.arange(1000, dtype=np.int32)
    temperatures *= np.sqrt(np.square(couplings).sum(1).mean())

    @case("anneal_sites 1000")
    def _(couplings=couplings, fields=fields, spins=spins, sites=sites, temperatures=temperatures):
        if old:
            kernels.anneal_sites(
                couplings,
                fields[0].copy(),
                spins[0].copy(),
                sites,
                temperatures,
                kernels.LOG_UNIFORM,
                np.uint64(7),
                never,
            )
        else:
            native.anneal(
                couplings,
                fresh(fields),
                fresh(spins),
                sites,
                temperatures,
                np.full(1, 7, np.uint64),
                np.zeros(1, np.int64),
                never,
                1,
            )

    @case("fields_of 1000")
    def _(couplings=couplings, linear=linear, spins=spins):
        if old:
            kernels.fields_of(couplings, linear[0], spins[0])
        else:
            native.fields_of(couplings, linear[0], spins[0], np.empty_like(linear[0]))

    q_couplings, q_linear, _, _ = dense(64, 32)
    generator = np.random.default_rng(0)
    q_spins = generator.choice([-1.0, 1.0], (32, 8, 64)).astype(np.float32)
    q_fields = q_linear[:, None] + q_spins @ q_couplings
    ties, scale = np.linspace(0.01, 0.5, 32).astype(np.float32), np.full(32, 0.8, np.float32)
    q_states = generator.integers(1, 2**63, 32, dtype=np.uint64)

    @case("anneal_slices 64x32")
    def _():
        work = q_couplings, fresh(q_fields), fresh(q_spins), ties, scale, 0.05
        if old:
            kernels.anneal_slices(*work, kernels.LOG_UNIFORM, q_states)
        else:
            native.anneal_slices(*work, q_states, 1)

    twice, _, slopes, points = dense(256, 64)
    twice = twice + np.eye(256, dtype=np.float32) * 0.5
    factor = np.ascontiguousarray(np.linalg.cholesky(twice + np.eye(256) * 0.5).astype(np.float32))

    @case("relax 256x64")
    def _():
        (rounding._relax if old else native.relax)(twice, fresh(slopes), fresh(points * 0.3), 6, *(() if old else (1,)))

    @case("round_down 256x64")
    def _():
        (rounding._round if old else native.round_down)(factor, fresh(slopes), fresh(points), *(() if old else (1,)))

    for n, degree in ((800, 48), (10000, 4)):
        problem = graph(n, degree, old=old)
        every, temperatures = (
            np.arange(n, dtype=np.int32),
            np.append(np.linspace(1, 0.08, 30), np.zeros(3)) * degree**0.5,
        )
        bits = np.random.default_rng(1).integers(0, 1 << 16, n, dtype=np.uint16)
        one = np.where(bits & 1, 1, -1).astype(np.int8)
        chains = np.where(bits[None] >> np.arange(16)[:, None] & 1, 1, -1).astype(np.int8)
        single, thresholds, block = (
            problem.couplings.astype(np.float32),
            np.full(n, 1e-9),
            int((n / (degree + 2)) ** 0.5),
        )
        rows = (problem.indptr, problem.indices)
        sparse = None if old else native.Rows(*rows, problem.couplings)

        @case(f"anneal_lanes {n}")
        def _(
            problem=problem, bits=bits, every=every, temperatures=temperatures, single=single, rows=rows, sparse=sparse
        ):
            if old:
                lanes.anneal(
                    *rows,
                    single,
                    lanes.first_fields(problem.linear),
                    bits.copy(),
                    every,
                    temperatures,
                    lanes.EXPONENTIAL,
                    np.uint64(7),
                    never,
                )
            else:
                native.anneal_lanes(sparse, problem.linear, bits.copy(), every, temperatures, 7, never)

        @case(f"anneal_sparse {n}")
        def _(
            problem=problem, one=one, every=every, temperatures=temperatures, single=single, rows=rows, sparse=sparse
        ):
            if old:
                sparse_kernels.anneal(
                    *rows,
                    single,
                    problem.linear,
                    one.copy(),
                    every,
                    temperatures,
                    kernels.LOG_UNIFORM,
                    np.uint64(7),
                    never,
                )
            else:
                native.anneal_sparse(sparse, problem.linear, one.copy(), every, temperatures, 7, never)

        @case(f"harvest {n}")
        def _(problem=problem, chains=chains, thresholds=thresholds, one=one, sparse=sparse, rows=rows):
            arguments = problem.linear, thresholds, chains.copy(), one.copy(), never
            if old:
                sparse_kernels.harvest(*rows, problem.couplings, *arguments)
            else:
                native.harvest(sparse, *arguments)

        @case(f"tabu_sparse {n}")
        def _(problem=problem, one=one, block=block, sparse=sparse, rows=rows):
            if old:
                sparse_kernels.tabu(
                    *rows, problem.couplings, problem.linear, one.copy(), block, 3000, 20, np.uint64(7), never
                )
            else:
                native.tabu_sparse(sparse, problem.linear, one.copy(), block, 3000, 20, 7, never)

        model = problem
        if not old:
            model = SparseModel.of(problem.indptr, problem.indices, problem.couplings, problem.linear)

        @case(f"reduction {n}")
        def _(model=model):
            reduction = Reduction.of(model, never)
            reduction.completed(np.ones(len(reduction.kept), np.int8))

        @case(f"colour {n}")
        def _(rows=rows, sparse=sparse, n=n):
            if old:
                sparse_kernels.coloured(*rows)
            else:
                native.colour(sparse, np.empty(n, np.int64))

    for n, scale_of in ((60, 1.0), (60, 3.0)):
        couplings, linear, fields, spins = dense(n, 64, "float64")
        linear = linear * scale_of

        @case(f"fix_dominated {n} {scale_of}")
        def _(couplings=couplings, linear=linear):
            if old:
                fixing.dominated(couplings, linear, never)
            else:
                native.fix_dominated(couplings, linear, np.empty_like(linear), never, 1)

    couplings, linear, _, spins = dense(18, 32, "float64")

    @case("complete 18x32")
    def _(couplings=couplings, linear=linear, spins=spins):
        work = couplings, linear, np.zeros_like(linear), fresh(spins)
        if old:
            exhaustion.complete(*work, never)
        else:
            native.complete(*work, np.zeros(32, bool), never, 1)

    wide, wide_linear, _, _ = dense(24, 1, "float64")

    @case("exhaust 24")
    def _():
        if old:
            exhaustion.exhaust(wide, wide_linear[0], never)
        else:
            native.exhaust(wide, wide_linear[0], np.empty(24), never, 1)

    for n in (24, 40):
        couplings, linear, _, spins = dense(n, 16, "float64")
        shift = float(-np.linalg.eigvalsh(couplings / 2)[0] * 1.0001)

        @case(f"decode {n}x16")
        def _(couplings=couplings, linear=linear, spins=spins, shift=shift):
            work = couplings, linear, np.zeros_like(linear), fresh(spins), shift, 2000
            if old:
                sphere_decoder.search(*work, never)
            else:
                native.decode(*work, np.zeros(16, np.int64), never, 1)

    problem = graph(1000, 15, old=old)
    indptr, indices, strengths = problem.indptr, problem.indices.astype(np.int64), problem.couplings.astype(np.float32)
    h, schedule = (
        np.zeros(1000, np.float32),
        np.stack([np.linspace(0, 1, 16), np.linspace(0.02, 0.5, 16), np.full(16, 0.1)], 1),
    )
    schedule, reads = schedule.astype(np.float32), generator.choice([-1.0, 1.0], (10, 8, 1000)).astype(np.float32)
    read_states = generator.integers(1, 2**63, 10, dtype=np.uint64)
    sparse_chip = None if old else native.Rows(problem.indptr, problem.indices, problem.couplings)

    @case("sweep_chip 1000x10")
    def _():
        if old:
            virtual_qpu._sweep(indptr, indices, strengths, h, fresh(reads), schedule, kernels.LOG_UNIFORM, read_states)
        else:
            native.sweep_chip(sparse_chip, h, fresh(reads), schedule, read_states, 1)

    for rows_count, n, m in ((32, 64, 10), (128, 256, 128)):
        inputs, grads = (generator.standard_normal((rows_count, k)).astype(np.float32) for k in (n, m))

        @case(f"scale_rows {rows_count}x{n}x{m}")
        def _(inputs=inputs, grads=grads):
            out = np.empty_like(inputs), np.empty_like(grads)
            if old:
                binary_map_numba._scaled_rows(inputs, grads, 0.5, 1.0, False, *out, 1.2e-7)
            else:
                native.scale_rows(inputs, grads, 0.5, 1.0, False, *out, np.empty(grads.shape[1] + 1))

    sizes = np.array([784, 256, 128])
    words = lambda *shape: generator.integers(0, 2**64, shape, dtype=np.uint64, endpoint=False)  # noqa: E731
    weights = words(13 * 256 + 4 * 128 + 2 * 10)
    most, flipped = np.full(256 + 128, 200, np.uint64), np.zeros((13, 2), np.uint64)
    factor10, offset10 = np.ones(10, np.float32), np.zeros(10, np.float32)
    for batch in (1, 256):
        images = generator.standard_normal((batch, 784)).astype(np.float32)

        @case(f"dense_sums 784-256-128-10 batch {batch}")
        def _(images=images):
            out = np.empty((len(images), 10), np.float32)
            (popcount if old else native).dense_sums(images, sizes, weights, most, flipped, factor10, offset10, out)

        @case(f"dense_signs 784-256-128 batch {batch}")
        def _(images=images):
            out = np.empty((len(images), 128), np.int8)
            (popcount if old else native).dense_signs(images, sizes, weights[: 13 * 256 + 4 * 128], most, flipped, out)

    signs = generator.choice([-1, 1], (8, 64, 14, 14)).astype(np.int8)
    kernel = words(1, 3, 3, 1, 128)
    taps = np.arange(14)[:, None] + np.arange(3) - 1
    taps = np.where(taps > 13, -1, taps)
    if not old:
        planes = Weights(generator.random((1, 128, 64, 3, 3)) < 0.5)
        convolution = Convolution("", planes, Window((3, 3), (1, 1), ((1, 1), (1, 1)), (1, 1)), integer=True)
        sums = integer_layer([convolution], Value("bits", (64, 14, 14)))

    @case("convolution of bits 64-128 14x14 batch 8")
    def _():
        if old:
            popcount.convolution_sums(signs, kernel, taps, taps, np.empty((8, 128, 14, 14), np.int32))
        else:
            sums(signs)

    return found


FIRST_CALLS = {
    "spins": """
        import torch
        from qpsbgd import QPSBGD
        from qpsbgd.nn import BinaryLinear
        layer = BinaryLinear(64, 10)
        optimizer = QPSBGD(layer, projection="spins")
        def prepare():
            optimizer.zero_grad()
            layer(torch.randn(32, 64)).square().mean().backward()
        work = optimizer.step""",
    "auto": """
        from qpsbgd.testing import random_family
        from qpsbgd.solvers import make_solver
        work = lambda: make_solver("auto").solve(random_family(64, 10, 32))""",
    "exact": """
        from qpsbgd.testing import random_family
        from qpsbgd.solvers import make_solver
        work = lambda: make_solver("exact").solve(random_family(24, 10, 32))""",
    "portfolio": """
        from qpsbgd.testing import random_family
        from qpsbgd.solvers import make_solver
        work = lambda: make_solver("portfolio", rounds=3).solve(random_family(64, 1, 32))""",
    "popcount": """
        import numpy as np, torch
        from qpsbgd.deploy import pack
        from qpsbgd.nn import BinaryLinear, SignActivation
        model = torch.nn.Sequential(SignActivation(), BinaryLinear(64, 32), SignActivation(), BinaryLinear(32, 10))
        packed, rows = pack(model.eval()), np.ones((4, 64), np.float32)
        work = lambda: packed(rows)""",
}
TIMED = """
import time
prepare = lambda: None
{setup}
times = []
for _ in range(3):
    prepare()
    begin = time.perf_counter(); work(); times.append(time.perf_counter() - begin)
print(times[0], min(times[1:]))
"""
COMMANDS = {"solve --help": ["solve", "--help"], "solve, 3 variables": ["solve", "p.coo"]}
IMPORTED = """
import time
begin = time.perf_counter()
import {module}
print(time.perf_counter() - begin)
"""


def measured(seconds, only):
    """Name → median microseconds per version, the calls in turns for so many seconds per kernel."""
    result, versions = {}, {"numba": cases(old=True), "native": cases(old=False)}
    for name in versions["native"]:
        if only not in name:
            continue
        times = {version: [] for version in versions}
        end = time.perf_counter() + seconds
        while len(times["native"]) < 8 or time.perf_counter() < end:
            for version, works in versions.items():
                begin = time.perf_counter()
                works[name]()
                times[version].append(time.perf_counter() - begin)
        row = {version: round(1e6 * statistics.median(every[1:]), 1) for version, every in times.items()}
        pairs = zip(times["numba"][1:], times["native"][1:], strict=True)
        result[name] = row | {"ratio": round(statistics.median(a / b for a, b in pairs), 2)}
        print(f"{name:45} numba {row['numba']:10.1f}  native {row['native']:10.1f} us  x{result[name]['ratio']:.2f}")
    return result


def child(code):
    environment = os.environ | {"OMP_WAIT_POLICY": "passive", "PYTHONWARNINGS": "ignore"}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)  # installed packages have their bytecode
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True)
    if done.returncode:
        sys.exit(done.stderr)
    return done.stdout


def version_of(code, old):
    """Code that imports this version, as that of the other one."""
    return f"import sys; sys.path.insert(0, {old!r})\n" + code.replace("qpsbgd", "qpsbgd_numba") if old else code


def unpacked(folder):
    """Puts the version with numba into `folder`, as a package of another name."""
    archive = subprocess.run(
        ["git", "-C", ROOT, "archive", NUMBA, "src/qpsbgd"], capture_output=True, check=True
    ).stdout
    subprocess.run(["tar", "-x", "--strip-components=1", "-C", folder], input=archive, check=True)
    package = (Path(folder) / "qpsbgd").rename(Path(folder) / "qpsbgd_numba")
    for path in package.rglob("*.py"):
        path.write_text(re.sub(r"(?<!\.)\bqpsbgd\b", "qpsbgd_numba", path.read_text()))


def first_calls(versions, rounds=ROUNDS):
    """Seconds of the first and of the next call in fresh processes."""
    found = {}
    for name, setup in FIRST_CALLS.items():
        code = TIMED.format(setup=textwrap.dedent(setup))
        for version, old in versions.items():
            mine = version_of(code, old).replace("QPSBGD_NUMBA", "QPSBGD")
            child(mine)  # fills the cache
            calls = [[float(x) for x in child(mine).split()] for _ in range(rounds)]
            row = {"first": min(c[0] for c in calls), "second": min(c[1] for c in calls)}
            found.setdefault(name, {})[version] = row
            print(name, version, row)
    return found


def imported(module, versions, rounds=3 * ROUNDS):
    """Seconds of an import in fresh processes, the least of some in turns."""
    codes = {version: version_of(IMPORTED.format(module=module), old) for version, old in versions.items()}
    times = [{version: float(child(code)) for version, code in codes.items()} for _ in range(rounds)]
    return {version: min(row[version] for row in times) for version in versions}


def commands(rounds=ROUNDS):
    """Seconds of whole processes of the command line, and their processor time."""
    found = {}
    for name, words in COMMANDS.items():
        times = []
        with tempfile.TemporaryDirectory() as folder:
            (Path(folder) / "p.coo").write_text("0 1 1\n1 2 -1\n")
            for _ in range(rounds):
                begin, before = time.perf_counter(), os.times()
                code = "from qpsbgd.cli import main; main()"
                subprocess.run([sys.executable, "-c", code, *words], cwd=folder, check=True, capture_output=True)
                after = os.times()
                used = after.children_user + after.children_system - before.children_user - before.children_system
                times.append((time.perf_counter() - begin, used))
        found[name] = {"seconds": min(t[0] for t in times), "processor": min(t[1] for t in times)}
    return found


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=float, default=1.0, help="per kernel")
    parser.add_argument("--only", default="", help="print the kernels with this word in their names alone")
    parser.add_argument("--processes", action="store_true", help="print first calls and commands of this version alone")
    options = parser.parse_args()
    if options.processes:
        print(json.dumps({"first_calls": first_calls({"native": None}), "commands": commands()}, indent=1))
        return
    from qpsbgd_paper.framework.result_files import environment

    with tempfile.TemporaryDirectory() as folder:
        unpacked(folder)
        sys.path.insert(0, folder)
        found = {"kernels": measured(options.seconds, options.only)}
        if options.only:
            return
        versions = {"numba": folder, "native": None}
        found["first_calls"] = first_calls(versions)
        found["import"] = {module: imported(module, versions) for module in ("qpsbgd", "qpsbgd.optim")}
    found["commands"] = commands()
    TARGET.write_text(json.dumps({"setup": environment(), **found}, indent=1))


if __name__ == "__main__":
    main()
