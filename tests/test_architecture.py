"""What is loaded and registered when the packages run; which module may import which stands in pyproject.toml."""

import subprocess
import sys
from importlib.metadata import entry_points
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PROJECTS = [*sorted((ROOT / "packages").iterdir()), ROOT / "reproduction"]


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


def test_importing_the_library_loads_no_optional_backend_and_its_parts_are_attributes():
    tomllib = pytest.importorskip("tomllib")  # from Python 3.11 on
    rules = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["importlinter"]["contracts"]
    optional = [*next(rule["forbidden_modules"] for rule in rules if rule["id"] == "optional"), "qpsbgd_paper"]
    names = "qpsbgd.nn.BinaryLinear, qpsbgd.qubo.QuboFamily, qpsbgd.solvers.make_solver, qpsbgd.QPSBGD"
    modules = "qpsbgd.analysis, qpsbgd.optim, qpsbgd.testing"
    code = f"import sys, qpsbgd; {names}; import {modules}; print([p for p in {optional} if p in sys.modules])"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert loaded.strip() == "[]"


def test_the_demo_needs_no_package_for_annealers():
    code = "import sys; sys.modules['dimod'] = None; import qpsbgd_paper.experiments.digits, qpsbgd_paper.report.page"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_what_is_installed_registers_what_the_project_says():
    tomllib = pytest.importorskip("tomllib")
    projects = [tomllib.loads((path / "pyproject.toml").read_text(encoding="utf-8"))["project"] for path in PROJECTS]
    groups = [group for project in projects for group in project.get("entry-points", {}).items()]
    for group, points in groups:
        installed = {point.name: point.value for point in entry_points(group=group)}
        assert points.items() <= installed.items(), "a pyproject.toml has changed since the installation: make install"
        assert all(point.load() for point in entry_points(group=group))
