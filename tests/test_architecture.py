import ast
import importlib.util
import subprocess
import sys
from importlib.metadata import entry_points
from pathlib import Path

import pytest

import qpsbgd

ROOT = Path(__file__).parents[1]
PROJECTS = [*sorted((ROOT / "packages").iterdir()), ROOT / "reproduction"]
FILES = {
    path.relative_to(project / "src").with_suffix("").as_posix(): path
    for project in PROJECTS
    for path in sorted((project / "src").rglob("*.py"))
}

# A module may import from its own part and from parts of lower levels; docs/architecture.md draws it.
LEVELS = {
    "qpsbgd_paper/cli": 9,
    "qpsbgd_paper/chip_studies": 8,
    "qpsbgd_paper/experiments": 7,
    "qpsbgd_paper/report": 7,
    "qpsbgd_paper/framework": 6,
    "qpsbgd_paper/datasets": 6,
    "qpsbgd/cli": 5.5,
    "qpsbgd/sklearn": 5.5,
    "qpsbgd/binarization": 5.2,
    "qpsbgd/optim": 5,
    "qpsbgd/parallel": 4.5,
    "qpsbgd/projections": 4,
    "qpsbgd/analysis": 4,
    "qpsbgd/deploy": 4,
    "qpsbgd/testing": 4,
    "qpsbgd/qubo": 3,
    "qpsbgd/solvers": 3,
    "qpsbgd/binary_map": 2,
    "qpsbgd/nn": 2,
    "qpsbgd_qubo": 1,
    "qpsbgd_runtime": 1,
    "qpsbgd_qubo/files": 0,
}
STRANGERS = {
    ("qpsbgd/nn", "qpsbgd_qubo"),
    ("qpsbgd_runtime", "qpsbgd_qubo"),
    ("qpsbgd_qubo", "qpsbgd_runtime"),
    ("qpsbgd_paper/report", "qpsbgd_paper/experiments"),
    ("qpsbgd_paper/experiments", "qpsbgd_paper/report"),
    ("qpsbgd_paper/framework", "qpsbgd_paper/report"),
    ("qpsbgd_paper/chip_studies", "qpsbgd_paper/report"),
}
OPTIONAL = {
    "dimod": {
        "qpsbgd_qubo/family",
        "qpsbgd_qubo/solvers/external/dimod",
        "qpsbgd_qubo/annealers/submissions",
        "qpsbgd_qubo/annealers/virtual_qpu",
        "qpsbgd_qubo/problems",
        "qpsbgd_qubo/dimod_sampler",
    },
    "distributed": {"qpsbgd_paper/framework/dask_workers"},
    "dwave": {
        "qpsbgd_qubo/solvers/external/dimod",
        "qpsbgd_qubo/annealers/chips",
        "qpsbgd_qubo/annealers/dwave",
        "qpsbgd_qubo/annealers/virtual_qpu",
        "qpsbgd_paper/chip_studies/embedding",
    },
    "gurobipy": {"qpsbgd_qubo/solvers/external/gurobi"},
    "matplotlib": {
        "qpsbgd/optim/monitor",
        "qpsbgd/optim/monitor_figure",
        "qpsbgd_paper/report/drawings",
        "qpsbgd_paper/report/figures",
        "qpsbgd_paper/report/rendering",
    },
    "onnx": {"qpsbgd/deploy/onnx_graph"},
    "openjij": {"qpsbgd_qubo/solvers/external/dimod"},
    "pooch": {"qpsbgd_paper/datasets/files"},
    "rich": {"qpsbgd/cli", "qpsbgd_paper/cli", "qpsbgd_qubo/command", "qpsbgd_qubo/console"},
    "safetensors": {"qpsbgd_runtime/packed_file", "qpsbgd/nn/saving"},
    "scipy": {
        "qpsbgd_paper/chip_studies/spectrum",
        "qpsbgd_paper/experiments/citation",
        "qpsbgd_paper/experiments/released",
        "qpsbgd_paper/framework/claims",
    },
    "skimage": {"qpsbgd_paper/datasets/mnist_bits"},
    "sklearn": {"qpsbgd/sklearn", "qpsbgd_paper/datasets/adult", "qpsbgd_paper/experiments/digits"},
    "torch_geometric": {"qpsbgd/nn/graph", "qpsbgd_paper/datasets/graphs"},
    "transformers": {"qpsbgd/nn/huggingface"},
    "triton": {
        "qpsbgd_qubo/solvers/search/kernels_triton",
        "qpsbgd_qubo/solvers/search/chains_triton",
    },
    "typer": {"qpsbgd/cli", "qpsbgd_paper/cli", "qpsbgd_qubo/command", "qpsbgd_qubo/console"},
}


def imported(text):
    """Every module that a file imports, at its top or inside functions, as `package/module`."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            yield from (alias.name.replace(".", "/") for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, "imports are absolute"
            module = node.module.replace(".", "/")
            for alias in node.names:  # a module, as in `from qpsbgd import cli`, or a name inside one
                whole = f"{module}/{alias.name}"
                if module == "qpsbgd" and alias.name in qpsbgd.__all__:
                    yield "qpsbgd/optim"  # where the package takes its own names from
                else:
                    yield whole if whole in FILES or f"{whole}/__init__" in FILES else module


def part(module):
    """The longest key of `LEVELS` that a module is in; None for the packages themselves."""
    return max((key for key in LEVELS if module == key or module.startswith(f"{key}/")), key=len, default=None)


def faults(module, text):
    """What a module imports against the rules."""
    here = part(module) or ""
    for other in imported(text):
        package = other.split("/")[0]
        if package in OPTIONAL and not any(module == f or module.startswith(f"{f}/") for f in OPTIONAL[package]):
            yield f"{other} does not belong into {module}"
        if other == "qpsbgd" and (LEVELS.get(here, 9) < 2 or (here.startswith("qpsbgd/") and here != "qpsbgd/cli")):
            yield f"{module} must import from the module that has the name, not from the package"
        there = part(other)
        if not here or there is None or here == there:
            continue
        if (here, there) in STRANGERS:
            yield f"{module} must not know {other}"
        if LEVELS[there] > LEVELS[here]:
            yield f"{module} must not import upwards from {other}"


def test_imports_point_one_way_and_optional_packages_have_one_home():
    found = [fault for module, path in FILES.items() for fault in faults(module, path.read_text(encoding="utf-8"))]
    assert found == []


@pytest.mark.parametrize(
    ("module", "text"),
    [
        ("qpsbgd/optim/qpsbgd", "from qpsbgd import cli"),
        ("qpsbgd/optim/qpsbgd", "def step():\n    from qpsbgd.cli import main"),
        ("qpsbgd/cli/app", "from qpsbgd_paper.experiments import EXPERIMENTS"),
        ("qpsbgd_qubo/assignments", "from qpsbgd.nn.layers import BinaryLinear"),
        ("qpsbgd_qubo/solvers/auto", "def solve():\n    from qpsbgd.solvers import make_solver"),
        ("qpsbgd_qubo/solvers/search/descent", "def solve():\n    import dimod"),
        ("qpsbgd_qubo/solvers/search/descent", "from qpsbgd import QPSBGD"),
        ("qpsbgd_qubo/solvers/search/descent", "import qpsbgd"),
        ("qpsbgd_runtime/packed_file", "import qpsbgd_qubo"),
        ("qpsbgd_qubo/files/atomic", "from qpsbgd_runtime import load_packed"),
        ("qpsbgd/binary_map", "from qpsbgd import solvers"),
        ("qpsbgd/projections/ridge", "import qpsbgd"),
    ],
)
def test_the_rules_see_every_form_of_import(module, text):
    assert list(faults(module, text))


def circle(imports):
    """Modules that import each other in a circle, or nothing; `imports` has the modules that each one imports."""
    done, path = set(), []

    def visit(module):
        if module in path:
            return [*path[path.index(module) :], module]
        if module in done:
            return []
        path.append(module)
        for other in imports.get(module, ()):
            if found := visit(other):
                return found
        path.pop()
        done.add(module)
        return []

    return next((found for module in imports if (found := visit(module))), [])


def at_the_top(text):
    """The modules that are loaded with a file: not those imported in functions or for type checkers alone."""
    tree = ast.parse(text)
    kept = [node for node in tree.body if not (isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test))]
    loaded = [node for node in kept if not isinstance(node, ast.FunctionDef | ast.ClassDef)]
    for name in imported("\n".join(ast.unparse(node) for node in loaded)):
        yield name if name in FILES else f"{name}/__init__"


def test_no_modules_import_each_other_in_a_circle():
    graph = {
        module: [other for other in at_the_top(path.read_text(encoding="utf-8")) if other in FILES]
        for module, path in FILES.items()
    }
    packages = {name for name in graph if name.endswith("__init__")}  # a package re-exports what its own modules have
    inner = {
        name: [o for o in others if not (o in packages and name.startswith(o.removesuffix("__init__")))]
        for name, others in graph.items()
    }
    assert circle(inner) == []


def test_a_circle_is_found():
    assert circle({"a": ["b"], "b": ["c"], "c": ["b"]}) == ["b", "c", "b"]
    assert circle({"a": ["b"], "b": ["c"], "c": []}) == []


def test_every_module_has_a_level():
    assert [module for module in FILES if part(module) is None] == ["qpsbgd/__init__", "qpsbgd_paper/__init__"]


@pytest.mark.parametrize(
    ("package", "unwanted"),
    [
        ("qpsbgd_qubo", ["torch", "qpsbgd", "qpsbgd_runtime"]),
        ("qpsbgd_runtime", ["torch", "qpsbgd", "qpsbgd_qubo", "safetensors"]),
    ],
)
def test_the_lower_packages_load_no_more_than_they_need(package, unwanted):
    code = f"import sys, {package}; print([name for name in {unwanted} if name in sys.modules])"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert loaded.strip() == "[]"


def test_nothing_in_the_library_names_an_experiment():
    from qpsbgd_paper.experiments import EXPERIMENTS

    words = {name for name in EXPERIMENTS if "-" in name or name in ("logreg", "karate", "cora", "pubmed", "mnist")}
    for module, path in FILES.items():
        if module.startswith("qpsbgd/"):
            text = path.read_text(encoding="utf-8").lower()
            assert not [word for word in words if f'"{word}"' in text], module


def test_importing_the_library_loads_no_optional_backend_and_its_parts_are_attributes():
    optional = sorted({*OPTIONAL, "qpsbgd_paper"})
    names = "qpsbgd.nn.BinaryLinear, qpsbgd.qubo.QuboFamily, qpsbgd.solvers.make_solver, qpsbgd.QPSBGD"
    modules = "qpsbgd.analysis, qpsbgd.optim, qpsbgd.testing"
    code = f"import sys, qpsbgd; {names}; import {modules}; print([p for p in {optional} if p in sys.modules])"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert loaded.strip() == "[]"


def test_what_is_installed_registers_what_the_project_says():
    tomllib = pytest.importorskip("tomllib")  # from Python 3.11 on
    projects = [tomllib.loads((path / "pyproject.toml").read_text(encoding="utf-8"))["project"] for path in PROJECTS]
    groups = [group for project in projects for group in project.get("entry-points", {}).items()]
    for group, points in groups:
        installed = {point.name: point.value for point in entry_points(group=group)}
        assert points.items() <= installed.items(), "a pyproject.toml has changed since the installation: make install"
        assert all(point.load() for point in entry_points(group=group))


def test_every_optional_package_of_the_rules_exists():
    missing = [name for name in OPTIONAL if name != "triton" and importlib.util.find_spec(name) is None]
    assert missing == []
