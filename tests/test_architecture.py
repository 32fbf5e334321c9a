import ast
import subprocess
import sys
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[1] / "src" / "qpsbgd"
FILES = sorted(SOURCE.rglob("*.py"))

# A module may import from its own level's package and from lower levels; docs/architecture.md draws it.
LEVELS = {
    "cli": 5,
    "experiments": 4,
    "report": 4,
    "optim": 3,
    "analysis": 3,
    "testing": 3,
    "sampler": 3,
    "checkpoint": 3,
    "binary_map": 2,
    "triton_map": 2,
    "solvers": 2,
    "problem_files": 2,
    "problems": 2,
    "nn": 1,
    "recording": 1,
    "qubo": 1,
    "atomic": 1,
    "datasets": 1,
}
FORBIDDEN_PAIRS = {
    ("binary_map", "solvers"),
    ("solvers", "binary_map"),
    ("solvers", "nn"),
    ("solvers", "recording"),
    ("report", "experiments"),
    ("experiments", "report"),
}
OPTIONAL = {
    "dimod": {"qubo.py", "solvers/dimod.py", "sampler.py", "problems.py", "problem_files.py"}
    | {"solvers/annealer/submissions.py", "solvers/virtual_qpu.py"},
    "dwave": {
        "solvers/dimod.py",
        "solvers/dwave.py",
        "solvers/leap_hybrid.py",
        "solvers/annealer/chips.py",
        "solvers/virtual_qpu.py",
        "analysis/embedding.py",
    },
    "gurobipy": {"solvers/gurobi.py"},
    "openjij": {"solvers/dimod.py"},
    "triton": {"triton_map.py", "solvers/triton_search.py"},
    "scipy": {"analysis/spectrum.py"},
    "sklearn": {"experiments/digits.py", "datasets/adult.py"},
    "skimage": {"datasets/mnist_bits.py"},
    "pooch": {"datasets/files.py"},
    "torch_geometric": {"nn/graph.py", "datasets/karate.py"},
    "matplotlib": {"report/drawings.py", "report/figures.py", "report/rendering.py"},
    "numba": {"solvers/fixing.py", "solvers/kernels.py", "solvers/sphere_decoder.py", "solvers/virtual_qpu.py"},
}


def imports(path):
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield node.module


def part(dotted):
    return dotted.split(".")[1] if dotted.count(".") else "__init__"


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(SOURCE)))
def test_imports_point_one_way_and_optional_packages_have_one_home(path):
    here = path.relative_to(SOURCE).parts[0].removesuffix(".py")
    for name in imports(path):
        package = name.split(".")[0]
        if package in OPTIONAL:
            assert str(path.relative_to(SOURCE)) in OPTIONAL[package], f"{name} does not belong here"
        if package != "qpsbgd" or here == "__init__" or part(name) == here or part(name) == "__init__":
            continue
        assert (here, part(name)) not in FORBIDDEN_PAIRS, f"{here} must not know {name}"
        assert LEVELS[part(name)] <= LEVELS[here], f"{here} must not import upwards from {name}"


def test_every_module_has_a_level():
    parts = {path.relative_to(SOURCE).parts[0].removesuffix(".py") for path in FILES} - {"__init__"}
    assert parts == set(LEVELS)


def test_importing_the_library_loads_no_optional_backend():
    optional = sorted(OPTIONAL)
    code = f"import sys, qpsbgd; print([p for p in {optional} if p in sys.modules])"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert loaded.strip() == "[]"
