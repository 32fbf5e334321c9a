"""Do the tests notice wrong code? Small changes, one at a time, each run against the tests that reach its line.

    python benchmarks/tools/mutants.py qpsbgd_qubo/solvers/exact qpsbgd/deploy qpsbgd_qubo/annealers/budget.py
    python benchmarks/tools/mutants.py qpsbgd/deploy --again a.json     what nobody noticed then, against today's tests

Folders and files are those of src; their tests those of the same folders of tests, or of the files' names, and those
that use the packages (`USERS`). Kernels for GPUs run in Triton's interpreter.
A first run of these tests records which of them reach which line. What an import runs, a default or a constant, is
tried by the tests that reach a line with its name. A change counts as noticed if one of them fails or does not end.
Changes are made in a copy of the sources. Writes benchmarks/results/mutants.json with all changes that nobody noticed.
Those that leave the behaviour as it is, judged by reading, stand with a reason in
benchmarks/tools/equivalent_mutants.json and are reported apart.
"""

import argparse
import ast
import contextlib
import copy
import importlib.util
import json
import os
import random
import re
import shutil
import signal
import sys
import tempfile
import threading
import time
from collections import Counter, defaultdict
from dataclasses import dataclass
from pathlib import Path

from forks import in_fork

ROOT = Path(__file__).parents[2]
QUIET = ["-q", "--no-header", "-p", "no:cacheprovider", "-p", "no:xdist"]
QUIET += ["-W", "ignore:mkldnn_matmul", "-m", "not slow"]
EQUIVALENT = ROOT / "benchmarks" / "tools" / "equivalent_mutants.json"
USERS = {
    "qpsbgd_runtime": ("qpsbgd/deploy",),
    "qpsbgd_qubo": ("test_readers.py", "qpsbgd/projections/test_spins.py", "qpsbgd/cli/test_qpu.py"),
    "qpsbgd/binarization": ("qpsbgd_files/test_memory.py",),
    "qpsbgd_files": ("test_readers.py", "qpsbgd_qubo/test_problem_files.py", "qpsbgd_qubo/formats"),
    "qpsbgd/deploy": ("qpsbgd_runtime", "qpsbgd/cli/test_deploy.py"),
}
PATIENCE = 60  # seconds beyond three times what the tests take unchanged

BOTH_WAYS = [(ast.Lt, ast.LtE), (ast.Gt, ast.GtE), (ast.Eq, ast.NotEq), (ast.Is, ast.IsNot), (ast.In, ast.NotIn)]
BOTH_WAYS += [(ast.And, ast.Or), (ast.Add, ast.Sub), (ast.BitAnd, ast.BitOr), (ast.LShift, ast.RShift)]
SWAPS = {one: other for pair in BOTH_WAYS for one, other in (pair, pair[::-1])}
SWAPS |= {ast.Mult: ast.Add, ast.Div: ast.Mult, ast.FloorDiv: ast.Mult, ast.Mod: ast.Add, ast.Pow: ast.Mult}
SWAPS |= {ast.BitXor: ast.BitOr}


def sites(tree):
    """Every node that can be changed, its statement, and the function whose call runs it (None: an import does).

    Messages of errors, annotations, decorators and texts are left alone.
    """

    def walk(node, statement, function):
        if isinstance(node, ast.JoinedStr) or (isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"):
            return
        statement = node if isinstance(node, ast.stmt) else statement
        if changed(node) is not None:
            yield node, statement, function
        if isinstance(node, ast.Raise):
            return
        called = node.body if isinstance(node, ast.FunctionDef) else ()
        skipped = [*getattr(node, "decorator_list", ()), *(getattr(node, n, None) for n in ("annotation", "returns"))]
        for child in ast.iter_child_nodes(node):
            if child not in skipped:
                yield from walk(child, statement, node if child in called else function)

    return list(walk(tree, None, None))


def changed(node):
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
        case ast.If() | ast.While() | ast.IfExp():
            wrong.test = ast.UnaryOp(ast.Not(), wrong.test)
        case ast.Return(value=ast.expr() as value) if not isinstance(value, ast.Constant):
            wrong.value = ast.Constant(None)
        case _:
            return None
    return wrong


class Replace(ast.NodeTransformer):
    def __init__(self, node, wrong):
        self.node, self.wrong = node, ast.copy_location(wrong, node)

    def visit(self, node):
        return self.wrong if node is self.node else self.generic_visit(node)


@dataclass(frozen=True)
class Mutant:
    """A change: as reports show it, the changed source, and what a test that may notice it runs.

    Attributes:
        lines: Those of the statement, or of the function whose default it is.
        names: What it sets, if an import runs it: lines with these names count instead.
    """

    shown: dict
    source: str
    lines: set
    names: set


def mutant(file, number, library):
    """The change of a file with this number."""
    text = file.read_text()
    tree = ast.parse(text)
    node, statement, function = sites(tree)[number]
    wrong = changed(node)
    was, became = (ast.unparse(one).splitlines()[0][:100] for one in (node, wrong))
    shown = {"file": str(file.relative_to(library)), "line": node.lineno}
    shown |= {"code": text.splitlines()[node.lineno - 1].strip(), "was": was, "became": became}
    first, last, names = statement.lineno, statement.end_lineno, set()
    if function is None and isinstance(statement, ast.FunctionDef):
        first = statement.body[0].lineno
    elif function is None:
        stored = [one for one in ast.walk(statement) if isinstance(getattr(one, "ctx", None), ast.Store)]
        names = {getattr(one, "id", None) or one.attr for one in stored if not isinstance(one, ast.Tuple)}
    elif body := getattr(statement, "body", None):
        last = max(first, body[0].lineno - 1)
    source = ast.unparse(ast.fix_missing_locations(Replace(node, wrong).visit(tree)))
    return Mutant(shown, source, set(range(first, last + 1)), names)


class Reach:
    """A pytest plugin: which lines of some files each passing test runs, and how long it takes."""

    def __init__(self, files):
        self.files, self.found, self.failed = {str(file) for file in files}, {}, []

    def trace(self, frame, event, argument):
        if frame.f_code.co_filename not in self.files or frame.f_code.co_name == "<module>":
            return None
        self.lines[frame.f_code.co_filename].add(frame.f_lineno)
        return self.trace

    def pytest_runtest_protocol(self, item, nextitem):
        self.lines, self.begin = defaultdict(set), time.perf_counter()
        threading.settrace(self.trace)
        sys.settrace(self.trace)

    def pytest_runtest_logreport(self, report):
        if report.failed:
            self.failed.append(report.nodeid)

    def pytest_runtest_logfinish(self, nodeid):
        sys.settrace(None)
        lines = {file: sorted(found) for file, found in self.lines.items()}
        self.found[nodeid] = {"seconds": time.perf_counter() - self.begin, "lines": lines}


def reached(folders, files, log):
    """Node → seconds and lines, of the tests of some folders that pass; and the nodes that fail."""
    import pytest

    def work():
        plugin = Reach(files)
        pytest.main([*QUIET, *(str(ROOT / "tests" / folder) for folder in folders)], plugins=[plugin])
        return {node: one for node, one in plugin.found.items() if node not in plugin.failed}, plugin.failed

    found = in_fork(work, log=log)
    if not found or not found[0]:
        raise SystemExit(f"the tests of {folders} cannot be run:\n{Path(log).read_text(errors='replace')[-3000:]}")
    return found


def options_of(description, *, sample, out):
    """A parser of the options of a study."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sample", type=int, default=sample)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=ROOT / "benchmarks" / "results" / out)
    parser.add_argument("--again", type=Path, help="try only what nobody noticed according to this report")
    return parser


def study(candidates, describe, is_noticed, options, **facts):
    """Try changes and write a report: how many of which file were noticed, and those that nobody noticed.

    Args:
        candidates: Arguments of `describe`, which gives a change as the report shows it, and of `is_noticed`.
        facts: What else the report says.
    """
    known = {identity(one): one["why"] for one in json.loads(EQUIVALENT.read_text())}
    sample = random.Random(options.seed).sample(candidates, min(options.sample, len(candidates)))
    if options.again:
        left = {identity(one) for one in json.loads(options.again.read_text())["survivors"]}
        found = {site: identity(describe(*site)) for site in candidates}
        if missing := left.difference(found.values()):
            raise SystemExit(f"these lines have changed; make a new report, or name their files: {missing}")
        sample = [site for site, one in found.items() if one in left]
    outcomes, survivors, begin = Counter(), [], time.monotonic()
    for count, site in enumerate(sample, 1):
        shown, seen = describe(*site), is_noticed(*site)
        outcomes[shown["file"], seen] += 1
        if not seen:
            survivors.append(shown)
            print(f"{count:4} {shown}", flush=True)
    survivors.sort(key=lambda one: (one["file"], one["line"]))
    noticed, tried = sum(number for (_, seen), number in outcomes.items() if seen), outcomes.total()
    report = {"seed": options.seed, "candidates": len(candidates), **facts}
    report |= {"tried": tried, "noticed": noticed, "minutes": round((time.monotonic() - begin) / 60, 1)}
    names = sorted({name for name, _ in outcomes})
    report["files"] = {name: [outcomes[name, True], outcomes[name, True] + outcomes[name, False]] for name in names}
    report["survivors"] = [one for one in survivors if identity(one) not in known]
    report["equivalent"] = [one | {"why": known[identity(one)]} for one in survivors if identity(one) in known]
    options.out.write_text(json.dumps(report, indent=1, ensure_ascii=False) + "\n")
    print(f"{noticed} of {tried} changes noticed, {len(report['equivalent'])} change nothing")


def identity(one):
    """What identifies a change while other lines come and go."""
    return one["file"], one["code"], one["was"], one["became"]


def copied(built=None):
    """The folder of a copy of the sources, from which this process imports the packages from now on.

    `built` has other extensions than those that are installed, in a folder per package.
    """
    work = Path(tempfile.mkdtemp())
    shutil.copytree(ROOT / "src", work / "src", ignore=shutil.ignore_patterns("__pycache__"))
    for package in ("qpsbgd_qubo", "qpsbgd_runtime"):
        kernels = Path(importlib.util.find_spec(f"{package}.kernels._kernels").origin)
        kernels = built / package / kernels.name if built else kernels
        shutil.copy(kernels, work / "src" / package / "kernels" / kernels.name)
    # An editable installation finds its modules before sys.path does.
    sys.meta_path[:] = [finder for finder in sys.meta_path if "qpsbgd" not in getattr(finder, "known_source_files", ())]
    for name in [name for name in sys.modules if name.startswith("qpsbgd")]:
        del sys.modules[name]
    sys.path.insert(0, str(work / "src"))
    os.environ["PYTHONPATH"] = str(work / "src")
    import qpsbgd

    if not Path(qpsbgd.__file__).is_relative_to(work):
        raise SystemExit(f"the copy would not be tested, but {qpsbgd.__file__}")
    for name in ("torch", "dimod", "dwave.system", "onnx", "onnxruntime", "scipy.sparse"):  # not by every change
        with contextlib.suppress(ImportError):
            importlib.import_module(name)
    return work


def reaching(tests, file, change, limit):
    """The tests that a change may fail, for so many seconds: the file's own, then the shortest first.

    Those that run its lines or lines with its names, or all if there are none: another process may run the file.
    """
    places = {str(file): change.lines}
    if change.names:
        word = re.compile(rf"\b({'|'.join(change.names)})\b")
        files = {name for one in tests.values() for name in one["lines"]}
        numbered = {name: enumerate(Path(name).read_text().splitlines(), 1) for name in files}
        places = {name: {at for at, line in text if word.search(line)} for name, text in numbered.items()}
    found = [n for n, one in tests.items() if any(places.get(name, set()) & set(o) for name, o in one["lines"].items())]
    own, nodes, seconds = f"/test_{file.stem}.py::", [], 0.0
    for node in sorted(found or tests, key=lambda node: (own not in node, tests[node]["seconds"])):
        if not nodes or seconds + tests[node]["seconds"] < limit:
            seconds += tests[node]["seconds"]
            nodes.append(node)
    return nodes, seconds


def is_noticed(file, change, nodes, expected, log):
    """Whether these tests, which take so many seconds unchanged, notice a change of a file."""
    import pytest

    text = file.read_text()
    file.write_text(change.source)
    try:
        return in_fork(pytest.main, [*QUIET, "-x", *nodes], log=log, patience=PATIENCE + 3 * expected) != 0
    finally:
        file.write_text(text)


def main():
    parser = options_of(__doc__, sample=300, out="mutants.json")
    parser.add_argument("places", nargs="+", help="folders or files below src")
    parser.add_argument("--seconds", type=float, default=60, help="of tests per change, shortest first")
    options = parser.parse_args()
    os.chdir(ROOT)
    os.environ["TRITON_INTERPRET"] = "1"
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell lets what runs in the background ignore it
    work = copied()
    library = work / "src"
    files, folders = [], []
    for place in options.places:
        path = library / place
        files += [path] if path.is_file() else sorted(path.rglob("*.py"))
        folders += [str(Path(place).with_name(f"test_{path.stem}.py")) if path.is_file() else place]
        folders += USERS.get(place, ())
    files = [file for file in files if file.stem != "__init__"]
    tests, failing = reached(folders, files, work / "reach")
    print(f"{len(tests)} tests pass, {len(failing)} fail unchanged", flush=True)
    candidates = [(file, number) for file in files for number in range(len(sites(ast.parse(file.read_text()))))]
    # From here on none is written: two changes of a file may have the same size and time.
    os.environ["PYTHONDONTWRITEBYTECODE"] = "1"
    sys.dont_write_bytecode = True

    def attempt(file, number):
        change = mutant(file, number, library)
        return is_noticed(file, change, *reaching(tests, file, change, options.seconds), work / "log")

    facts = {"seconds of tests per change": options.seconds, "tests that fail unchanged": failing}
    study(candidates, lambda *site: mutant(*site, library).shown, attempt, options, **facts)
    shutil.rmtree(work)


if __name__ == "__main__":
    main()
