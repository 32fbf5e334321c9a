"""Do the tests notice wrong code? Small changes of new lines, one at a time, each against the tests that reach it.

    nice python reproduction/benchmarks/tools/mutants.py --since d83c8907 --seed 7 --sample 300

Candidates are the lines of packages/*/src that git blames on commits after `--since`, without messages of errors,
annotations, texts (but C in deploy/c_*.py) and `zip(strict=)`; what is for GPUs is left out. A change is noticed if a
quick test of its module (of the same name, then of those in `TESTS`) fails or does not end, of as many as take
`--seconds` of processor time.
Everything happens in a copy of the sources; a run that is stopped goes on where it stood (`--work`). Writes
reproduction/results/mutants_new.json with all changes that nobody noticed.
"""

import argparse
import ast
import copy
import json
import multiprocessing
import os
import random
import re
import resource
import subprocess
import sys
import time
from collections import Counter
from importlib import import_module
from pathlib import Path

import pytest

from qpsbgd_paper.framework.result_files import write_json

ROOT = Path(__file__).parents[3]
OUT = ROOT / "reproduction" / "results" / "mutants_new.json"
FORKS = multiprocessing.get_context("fork")
QUIET = [
    *["-q", "--no-header", "--tb=line", "-p", "no:cacheprovider", "-p", "no:xdist", "-c", "pyproject.toml", "-m"],
    "not slow",
]
HEAVY = "torch numpy scipy.sparse dimod dwave.system onnx onnxruntime sklearn.base networkx safetensors.numpy"
GPU = {"chains_triton", "kernels_triton", "cuda_graph", "gpu_annealing"}
TESTS = """
chip_solver: virtual_qpu chips; ledger: budget; packing: packed_composite virtual_qpu; reads: samples dwave;
recordings: replay; service_solver: leap_hybrid budget; sqlite_file: budget replay; submissions: budget replay;
tiles: packed_composite virtual_qpu; annealing: search; assignments: solve_many; auto: solvers/protocol exact;
bqm: dimod_sampler solve_many; family: arrays protocol; lists: qbsolv coo text; pool: portfolio solve_many;
problems: problem_files solve_many ising; protocol: solve_many repeated_answers ranges; quantum_annealing:
search; search_problem: portfolio solve_many; single_flips: search descent; sphere_decoder: exact;
tensor_descent: descent search; terminal: command; testing: solvers/protocol; baselines: every_optimizer;
binary_optimizer: every_optimizer qpsbgd; claims: qpsbgd real_part; contexts: tape layers; distributed_solver:
ranks; estimator: sklearn; huggingface: saving transformers; known_layers: layers tape; layer_run: binarizing
passes following hostile_inputs; options: qpsbgd recommend; parameters: qpsbgd every_optimizer; qpsbgd:
every_optimizer recorded_passes; qubo_descent: every_optimizer; real_part: every_optimizer; recorder:
recorded_passes tape; selection: binarizing hostile_inputs; straight_through: layers activations transforms;
system: ridge weights spins dead_units; updates: baselines every_optimizer; weights: ridge polar dead_units;
c_bytes: c_layout c_memory c_code quantized; c_code: c_memory small_cases; c_layout: c_memory; c_passes:
c_memory c_layout c_code; c_steps: c_code small_cases quantized; c_templates: c_code small_cases;
c_tensor_steps: c_code functions; c_values: c_code quantized; graph_builder: functions reading in_place checks;
memory: c_memory c_layout; modules: functions targets checks spellings; thresholds: quantized small_cases
"""
"""Tests that reach a module, beside that of its name."""
OF_RUNTIME = ("test_functions", "test_packed_model", "test_small_cases", "test_crafted_files")
BOTH_WAYS = [(ast.Lt, ast.LtE), (ast.Gt, ast.GtE), (ast.Eq, ast.NotEq), (ast.Is, ast.IsNot), (ast.In, ast.NotIn)]
BOTH_WAYS += [(ast.And, ast.Or), (ast.Add, ast.Sub), (ast.BitAnd, ast.BitOr), (ast.LShift, ast.RShift)]
SWAPS = {a: b for pair in BOTH_WAYS for a, b in (pair, pair[::-1])}
SWAPS |= {ast.Mult: ast.Add, ast.Div: ast.Mult, ast.FloorDiv: ast.Mult, ast.Mod: ast.Add, ast.Pow: ast.Mult}
IN_C = {" < ": " <= ", " <= ": " < ", " > ": " >= ", " >= ": " > ", " + ": " - ", " - ": " + ", " * ": " + "}


def change(node, c_text):
    """The node in its wrong form; None where it has none."""
    wrong = copy.copy(node)
    match wrong:
        case ast.Raise():
            return ast.Pass()
        case ast.Compare(ops=[operator]) if type(operator) in SWAPS:
            wrong.ops = [SWAPS[type(operator)]()]
        case ast.BoolOp(op=operator) | ast.BinOp(op=operator) if type(operator) in SWAPS:
            wrong.op = SWAPS[type(operator)]()
        case ast.UnaryOp(op=ast.Not() | ast.USub()):
            return wrong.operand
        case ast.Constant(value=bool()):
            wrong.value = not wrong.value
        case ast.Constant(value=int() | float()):
            wrong.value = wrong.value + 1
        case ast.Constant(value=str() as text) if c_text and (operator := re.search(r" ([<>]=?|[-+*]) ", text)):
            wrong.value = text[: operator.start()] + IN_C[operator.group()] + text[operator.end() :]
        case ast.If() | ast.While() | ast.IfExp():
            wrong.test = ast.UnaryOp(ast.Not(), wrong.test)
        case ast.Return(value=ast.expr() as value) if not isinstance(value, ast.Constant):
            wrong.value = ast.Constant(None)
        case _:
            return None
    return wrong


def sites(tree, *, c_text):
    """Every node that can be changed."""

    def walk(node):
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            return
        if (isinstance(node, ast.JoinedStr) and not c_text) or (isinstance(node, ast.keyword) and node.arg == "strict"):
            return
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):  # a docstring
            return
        if change(node, c_text) is not None:
            yield node
        if isinstance(node, ast.Raise):
            return
        skipped = [*getattr(node, "decorator_list", ()), *(getattr(node, n, None) for n in ("annotation", "returns"))]
        for child in ast.iter_child_nodes(node):
            if child not in skipped:
                yield from walk(child)

    return list(walk(tree))


class Replace(ast.NodeTransformer):
    def __init__(self, node, wrong):
        self.node, self.wrong = node, ast.copy_location(wrong, node)

    def visit(self, node):
        return self.wrong if node is self.node else self.generic_visit(node)


def mutant(file, number, work):
    """The change of a file with this number: as reports show it, the changed source, the called function's line."""
    text, c_text = file.read_text(), file.stem.startswith("c_")
    tree = ast.parse(text)
    node = sites(tree, c_text=c_text)[number]
    wrong = change(node, c_text)
    was, became = (ast.unparse(form).splitlines()[0][:100] for form in (node, wrong))
    shown = {"file": str(file.relative_to(work)), "line": node.lineno}
    shown |= {"code": text.splitlines()[node.lineno - 1].strip(), "was": was, "became": became}
    return shown, ast.unparse(ast.fix_missing_locations(Replace(node, wrong).visit(tree)))


def new_lines(file, commits):
    """Numbers of a file's lines that these commits wrote, moved lines not counted."""
    command = ["git", "blame", "-s", "-w", "-M", "-C", commits, "--", str(file)]
    lines = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.splitlines()
    return {number for number, line in enumerate(lines, 1) if not line.startswith("^")}


def candidates(work, commits):
    """Files and numbers of the nodes in new lines."""
    places = []
    for file in sorted(work.glob("packages/*/src/**/*.py")):
        fresh = set() if file.stem in GPU else new_lines(file.relative_to(work), commits)
        nodes = sites(ast.parse(file.read_text()), c_text=file.stem.startswith("c_"))
        places += [(str(file), number) for number, node in enumerate(nodes) if node.lineno in fresh]
    return places


class Enough:
    """A pytest plugin: no further test after so many seconds of processor time."""

    def __init__(self, seconds):
        self.end = time.process_time() + seconds

    def pytest_runtest_logfinish(self, nodeid):
        if time.process_time() > self.end:
            raise pytest.exit.Exception("enough", 0)


def in_fork(function, *arguments, log=None, patience=None, processor_time=-1):
    """What a function returns in a fork of this process, its output in a log; None if it does not end well, in time."""
    here, there = FORKS.Pipe(duplex=False)

    def work():
        os.setsid()
        resource.setrlimit(resource.RLIMIT_CPU, (processor_time,) * 2)
        for stream in (1, 2) if log else ():
            os.dup2(os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND), stream)
        there.send(function(*arguments))
        os._exit(0)

    child = FORKS.Process(target=work)
    child.start()
    there.close()
    try:
        answer = here.recv() if here.poll(patience) else None
    except EOFError:
        answer = None
    try:
        os.killpg(child.pid, 9)
    except ProcessLookupError:
        child.kill()
    child.join()
    return answer


def tests_of(file, work):
    """The test files of a module."""
    package = file.relative_to(work / "packages").parts[0]
    if package == "qpsbgd-runtime":
        folder = work / "packages" / "qpsbgd" / "tests" / "deploy"
        return [folder / f"{name}.py" for name in OF_RUNTIME]
    others = dict(entry.split(": ") for entry in " ".join(TESTS.split()).split("; "))
    names = [f"test_{name}" for name in (file.stem, *others.get(file.stem, "").split())]
    names = [name.replace("test_solvers/", "solvers/test_") for name in names]
    folder = file.parent.name.replace(file.relative_to(work).parts[3], "*")  # a test may stand in a folder of this name
    files = [path for name in names for path in sorted(work.glob(f"packages/{package}/tests/**/{name}.py"))]
    return files or sorted(work.glob(f"packages/{package}/tests/**/{folder}/test_*.py"))


def detect(file, source, tests, seconds, log):
    """The test that notices a change of a file, or how it ends the process; None if all pass."""
    text, times = file.read_text(), file.stat()
    file.write_text(source)
    try:
        limits = {"patience": 60 * seconds, "processor_time": 6 * seconds}
        code = in_fork(lambda: int(pytest.main([*QUIET, "-x", *tests], [Enough(seconds)])), log=log, **limits)
    finally:
        file.write_text(text)
        os.utime(file, ns=(times.st_atime_ns, times.st_mtime_ns))
    if code in (3, 4, 5):
        raise SystemExit(f"pytest cannot run {tests}:\n{log.read_text(errors='replace')[-2000:]}")
    failed = re.findall(r"^FAILED (\S+)|^ERROR (\S+)", log.read_text(errors="replace"), re.MULTILINE)
    return None if code == 0 else str(failed[0][0] or failed[0][1]) if failed else f"ended with {code}"


def copy_sources(work):
    """Copy what is committed, with the kernels that are installed, and import from there from now on."""
    if not work.exists():
        work.mkdir(parents=True)
        head = subprocess.run(["git", "rev-parse", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
        (work / "commit").write_text(head.strip())
    # Always, because a run that was killed leaves its last change behind.
    archive = ["git", "archive", (work / "commit").read_text()]
    content = subprocess.run(archive, cwd=ROOT, capture_output=True, check=True).stdout
    subprocess.run(["tar", "x", "-C", work], input=content, check=True)
    for kernels in ROOT.glob("packages/*/src/*/kernels/*.so"):
        (work / kernels.relative_to(ROOT)).write_bytes(kernels.read_bytes())
    os.chdir(work)
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    sources = [str(path) for path in sorted(work.glob("packages/*/src"))]
    os.environ["PYTHONPATH"] = os.pathsep.join([*sources, str(work / "reproduction" / "src")])
    for name in [name for name in sys.modules if name.startswith("qpsbgd")]:
        del sys.modules[name]
    sys.path[:0] = sources
    for name in HEAVY.split():
        import_module(name)
    if not (work / "compiled").exists():  # not later: two changes of a file may have the same size and time
        tests = [str(folder) for folder in work.glob("packages/*/tests")]
        in_fork(lambda: int(pytest.main([*QUIET, "--collect-only", *tests])), log=work / "log", patience=900)
        (work / "compiled").touch()
    sys.dont_write_bytecode = True


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--since", default="d83c8907")
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--sample", type=int, default=300)
    parser.add_argument("--seconds", type=int, default=10)
    parser.add_argument("--work", type=Path, default=Path("/tmp/mutants"))
    options = parser.parse_args()
    copy_sources(options.work)
    work = options.work
    commits, kept = f"{options.since}..{(work / 'commit').read_text()}", work / "candidates.json"
    if not kept.exists():
        kept.write_text(json.dumps(candidates(work, commits)))
    sample = random.Random(options.seed).sample(json.loads(kept.read_text()), options.sample)
    lines = work / "outcomes.jsonl"
    done = list(map(json.loads, lines.read_text().splitlines())) if lines.exists() else []
    outcomes = []
    for count, (name, number) in enumerate(sample):
        shown, source = mutant(Path(name), number, work)
        if count == len(done):
            tests = tests_of(Path(name), work)
            done.append(detect(Path(name), source, tests, options.seconds, work / "log") if tests else None)
            with lines.open("a") as out:
                out.write(json.dumps(done[-1]) + "\n")
            print(count, round(sum(os.times()[2:4])), done[-1], "" if done[-1] else shown, flush=True)
        outcomes.append((shown, done[count]))
    survivors = sorted((s for s, seen in outcomes if not seen), key=lambda s: (s["file"], s["line"]))
    print(f"{len(outcomes) - len(survivors)} of {len(outcomes)} changes noticed")
    of_file, left = Counter(s["file"] for s, _ in outcomes), Counter(s["file"] for s in survivors)
    facts = {"seed": options.seed, "lines of": commits, "candidates": len(json.loads(kept.read_text()))}
    facts |= {"seconds of tests per change": options.seconds}
    facts |= {"tried": len(outcomes), "noticed": len(outcomes) - len(survivors)}
    facts["files"] = {name: [count - left[name], count] for name, count in sorted(of_file.items())}
    write_json(OUT, {**facts, "survivors": survivors})


if __name__ == "__main__":
    main()
