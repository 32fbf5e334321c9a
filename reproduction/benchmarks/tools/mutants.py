"""Do the tests notice wrong code? Small changes of new lines, one at a time, each against the tests that name it.

    nice python reproduction/benchmarks/tools/mutants.py --since d83c8907 --seed 7 --sample 300

Candidates are the lines of packages/*/src that git blames on commits after `--since`, without messages of errors,
annotations, texts (but C in deploy/c_*.py) and `zip(strict=)`; what is for GPUs is left out. A change is noticed if a
quick test fails or does not end, of as many as take `--seconds` of processor time: those in files of the module's name,
in files that import it, and in the tests' folder of the same name. Everything happens in a copy of what is committed;
a run that is stopped goes on where it stood (`--work`). Writes reproduction/results/mutants_new.json with all changes
that nobody noticed. The present results, there and in mutants*.json, are by mutants.py of commit af1c5b87 and before,
which chose tests by a list.
"""

import argparse
import ast
import copy
import json
import os
import random
import re
import subprocess
import sys
from collections import Counter
from importlib import import_module
from pathlib import Path

from qpsbgd_paper.framework.result_files import write_json

ROOT = Path(__file__).parents[3]
OUT = ROOT / "reproduction" / "results" / "mutants_new.json"
GPU = {"kernels_triton", "cuda_graph"}
RUN_TESTS = """
import sys, time, pytest
sys.meta_path[:] = [finder for finder in sys.meta_path if "ScikitBuild" not in type(finder).__name__]

class Enough:
    def pytest_runtest_logfinish(self, nodeid):
        if time.process_time() > float(sys.argv[1]):
            raise pytest.exit.Exception("enough", 0)

options = "-q --no-header --tb=line -x -p no:cacheprovider -p no:xdist -c pyproject.toml".split()
sys.exit(pytest.main([*options, "-m", "not slow", *sys.argv[2:]], [Enough()]))
"""
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


def tests_of(file, work):
    """The test files of a module: that of its name, those that import it, those of its folder."""
    module = re.sub(r".*/src/|\.py$|/__init__\.py$", "", str(file)).replace("/", ".")
    files = sorted(work.glob("packages/*/tests/**/test_*.py"))
    named = [path for path in files if path.stem == f"test_{file.stem}"]
    importing = [path for path in files if re.search(rf"\b{re.escape(module)}\b", path.read_text())]
    return list(dict.fromkeys([*named, *importing, *work.glob(f"packages/*/tests/**/{file.parent.name}/test_*.py")]))


def detect(file, source, tests, seconds, work):
    """The test that notices a change of a file, or how it ends the process; None if all pass."""
    text = file.read_text()
    file.write_text(source)
    paths = os.pathsep.join(map(str, [*work.glob("packages/*/src"), work / "reproduction" / "src"]))
    try:
        done = subprocess.run(
            [sys.executable, "-B", "-c", RUN_TESTS, str(seconds), *tests],
            cwd=work,
            env=os.environ | {"PYTHONPATH": paths},
            capture_output=True,
            text=True,
            timeout=60 * seconds,
        )
    except subprocess.TimeoutExpired:
        return "does not end"
    finally:
        file.write_text(text)
    if done.returncode in (3, 4, 5):
        raise SystemExit(f"pytest cannot run {tests}:\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
    failed = re.search(r"^(?:FAILED|ERROR) (\S+)", done.stdout, re.MULTILINE)
    return None if done.returncode == 0 else failed[1] if failed else f"ended with {done.returncode}"


def copy_sources(work):
    """Copy what is committed, with the kernels that are installed."""
    if not work.exists():
        work.mkdir(parents=True)
        head = subprocess.run(["git", "rev-parse", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
        (work / "commit").write_text(head.strip())
    # Always, because a run that was killed leaves its last change behind.
    archive = ["git", "archive", (work / "commit").read_text()]
    content = subprocess.run(archive, cwd=ROOT, capture_output=True, check=True).stdout
    subprocess.run(["tar", "x", "-C", work], input=content, check=True)
    for package in ("qpsbgd_qubo", "qpsbgd_runtime"):
        kernels = Path(import_module(f"{package}.kernels._kernels").__file__)
        source = work / "packages" / package.replace("_", "-") / "src" / package
        (source / "kernels" / kernels.name).write_bytes(kernels.read_bytes())


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
            done.append(detect(Path(name), source, tests, options.seconds, work) if tests else None)
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
