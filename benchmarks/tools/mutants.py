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
    """Every node that can be changed; messages of errors, annotations and texts are left alone."""
    stack = [tree]
    while stack:
        node = stack.pop()
        if isinstance(node, ast.JoinedStr) or (isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"):
            continue
        if changed(node) is not None:
            yield node
        if not isinstance(node, ast.Raise):
            skipped = {getattr(node, name, None) for name in ("annotation", "returns")}
            skipped |= set(getattr(node, "decorator_list", ()))
            stack += [child for child in ast.iter_child_nodes(node) if child not in skipped]


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
    def __init__(self, number):
        self.number = number

    def visit(self, node):
        if getattr(node, "number", None) == self.number:
            self.line, self.before, wrong = node.lineno, short(node), changed(node)
            self.after = short(wrong)
            return ast.copy_location(wrong, node)
        return self.generic_visit(node)


def short(node):
    return ast.unparse(node).splitlines()[0][:100]


def names_and_lines(tree, number):
    """The lines of the statement with a change; and what it names, if an import runs it."""

    def find(node, inside, statement):
        """`inside`: the function whose call runs the node, or None."""
        if isinstance(node, ast.stmt):
            statement = node
        if getattr(node, "number", None) == number:
            return inside, statement
        called = set(getattr(node, "body", ())) if isinstance(node, ast.FunctionDef) else ()
        for child in ast.iter_child_nodes(node):
            if found := find(child, node if child in called else inside, statement):
                return found
        return None

    inside, statement = find(tree, None, None)
    body = getattr(statement, "body", None)
    lines = range(statement.lineno, max(statement.lineno, body[0].lineno - 1 if body else statement.end_lineno) + 1)
    if inside:
        return set(), set(lines)
    if isinstance(statement, ast.FunctionDef):
        return set(), {line for each in statement.body for line in range(each.lineno, each.end_lineno + 1)}
    stored = (node for node in ast.walk(statement) if isinstance(getattr(node, "ctx", None), ast.Store))
    return {getattr(node, "id", None) or node.attr for node in stored if not isinstance(node, ast.Tuple)}, set()


def numbered(text):
    tree = ast.parse(text)
    count = 0
    for count, node in enumerate(sites(tree), 1):
        node.number = count
    return tree, count


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
    """Node → seconds and lines, of the tests of some folders that pass."""
    import pytest

    def work():
        plugin = Reach(files)
        pytest.main([*QUIET, *(str(ROOT / "tests" / folder) for folder in folders)], plugins=[plugin])
        found = {node: one for node, one in plugin.found.items() if node not in plugin.failed}
        return {"tests": found, "failed": plugin.failed}

    found = in_fork(work, log=log)
    if not found or not found["tests"]:
        raise SystemExit(f"the tests of {folders} cannot be run:\n{Path(log).read_text(errors='replace')[-3000:]}")
    return found


def study(sample, attempt, out, *, minutes=600.0, **facts):
    """Try changes and write a report: how many of which file were noticed, and those that nobody noticed.

    Args:
        sample: Arguments of `attempt`, which returns a change and whether it was noticed.
        minutes: Stop then.
        facts: What else the report says.
    """
    known = {change(one): one["why"] for one in json.loads(EQUIVALENT.read_text())}
    outcomes, survivors, begin = Counter(), [], time.monotonic()
    for count, one in enumerate(sample, 1):
        if time.monotonic() - begin > 60 * minutes:
            break
        found, seen = attempt(*one)
        outcomes[found["file"], seen] += 1
        if not seen:
            survivors.append(found)
            print(f"{count:4} {found}", flush=True)
    survivors.sort(key=lambda one: (one["file"], one["line"]))
    noticed, tried = sum(number for (_, seen), number in outcomes.items() if seen), outcomes.total()
    names = sorted({name for name, _ in outcomes})
    report = facts | {"tried": tried, "noticed": noticed, "minutes": round((time.monotonic() - begin) / 60, 1)}
    report["files"] = {name: [outcomes[name, True], outcomes[name, True] + outcomes[name, False]] for name in names}
    report["survivors"] = [one for one in survivors if change(one) not in known]
    report["equivalent"] = [one | {"why": known[change(one)]} for one in survivors if change(one) in known]
    out.write_text(json.dumps(report, indent=1, ensure_ascii=False) + "\n")
    print(f"{noticed} of {tried} changes noticed, {len(report['equivalent'])} change nothing")


def change(one):
    """What identifies a change while other lines come and go."""
    return one["file"], one["code"], one["was"], one["became"]


def unnoticed(report, candidates, describe):
    """Those candidates that nobody noticed according to a report; `describe` gives the change of each."""
    left = {change(one) for one in json.loads(report.read_text())["survivors"]}
    found = {site: change(describe(*site)) for site in candidates}
    if missing := left.difference(found.values()):
        raise SystemExit(f"these lines have changed; make a new report, or name the places that hold them: {missing}")
    return [site for site, one in found.items() if one in left]


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


def reaching(tests, file, names, lines, limit):
    """The tests that run some lines, or lines with some names, for so many seconds: the file's own, the shortest first.

    All that run the file if none does; and where a process of its own runs it, all that run a file that mentions it.
    """
    files = {name for one in tests.values() for name in one["lines"]}
    places, texts = {str(file): lines}, {name: Path(name).read_text() for name in files}
    if names:
        word = re.compile(rf"\b({'|'.join(names)})\b")
        numbered_lines = {name: enumerate(text.splitlines(), 1) for name, text in texts.items()}
        places = {name: {at for at, line in text if word.search(line)} for name, text in numbered_lines.items()}
    mentioning = {name for name, text in texts.items() if file.stem in text}
    for belongs in (
        lambda one: any(places[name] & set(found) for name, found in one.items() if name in places),
        lambda one: str(file) in one,
        lambda one: not mentioning.isdisjoint(one),
        lambda one: True,
    ):
        if found := [node for node, one in tests.items() if belongs(one["lines"])]:
            break
    own = f"/test_{file.stem}.py::"
    nodes, seconds = [], 0.0
    for node in sorted(found, key=lambda node: (own not in node, tests[node]["seconds"])):
        if not nodes or seconds + tests[node]["seconds"] < limit:
            seconds += tests[node]["seconds"]
            nodes.append(node)
    return nodes, seconds


def described(file, number, library):
    """A change of a file, as reports show it."""
    text, replace = file.read_text(), Replace(number)
    replace.visit(numbered(text)[0])
    shown = {"file": str(file.relative_to(library)), "line": replace.line}
    code = text.splitlines()[replace.line - 1].strip()
    return shown | {"code": code, "was": replace.before, "became": replace.after}


def is_noticed(file, number, tests, seconds, log):
    """Whether the tests that reach a change of a file notice it."""
    import pytest

    text = file.read_text()
    tree = numbered(text)[0]
    nodes, expected = reaching(tests, file, *names_and_lines(tree, number), seconds)
    mutated = ast.unparse(ast.fix_missing_locations(Replace(number).visit(tree)))
    if not nodes:
        return False
    file.write_text(mutated)
    try:
        return in_fork(pytest.main, [*QUIET, "-x", *nodes], log=log, patience=PATIENCE + 3 * expected) != 0
    finally:
        file.write_text(text)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("places", nargs="+", help="folders or files below src")
    parser.add_argument("--sample", type=int, default=300)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--without", default="", help="stems of files to leave out, with commas between")
    parser.add_argument("--seconds", type=float, default=60, help="of tests per change, shortest first")
    parser.add_argument("--minutes", type=float, default=600, help="stop then, and say how many were tried")
    parser.add_argument("--out", type=Path, default=ROOT / "benchmarks" / "results" / "mutants.json")
    parser.add_argument("--again", type=Path, help="try only what nobody noticed according to this report")
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
        folder = str(path.parent.relative_to(library)) if path.is_file() else place
        folders += [f"{folder}/test_{path.stem}.py" if path.is_file() else folder, *USERS.get(place, ())]
    files = [file for file in files if file.stem not in ("__init__", *options.without.split(","))]
    found = reached(folders, files, work / "reach")
    tests, failing = found["tests"], found["failed"]
    print(f"{len(tests)} tests pass, {len(failing)} fail unchanged", flush=True)
    candidates = [(file, number) for file in files for number in range(1, numbered(file.read_text())[1] + 1)]
    # From here on none is written: two changes of a file may have the same size and time.
    os.environ["PYTHONDONTWRITEBYTECODE"] = "1"
    sys.dont_write_bytecode = True
    if options.again:
        sample = unnoticed(options.again, candidates, lambda file, number: described(file, number, library))
    else:
        sample = random.Random(options.seed).sample(candidates, min(options.sample, len(candidates)))
    facts = {"seed": options.seed, "seconds of tests per change": options.seconds}
    facts |= {"left out": options.without.split(","), "candidates": len(candidates)}

    def attempt(file, number):
        return described(file, number, library), is_noticed(file, number, tests, options.seconds, work / "log")

    study(sample, attempt, options.out, minutes=options.minutes, **facts, **{"tests that fail unchanged": failing})
    shutil.rmtree(work)


if __name__ == "__main__":
    main()
