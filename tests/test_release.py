"""What a release consists of: the wheel and the source archive, built, installed and used."""

import os
import subprocess
import sys
import tarfile
import zipfile
from importlib.metadata import PathDistribution
from pathlib import Path

import pytest

import qpsbgd

ROOT = Path(__file__).parents[1]
VERSIONS = ("3.10", "3.11", "3.12", "3.13")
# The finder of an editable installation would come before what is installed in a folder.
TRAINING = """
import sys
sys.meta_path[:] = [finder for finder in sys.meta_path if "editable" not in repr(finder).lower()]
import qpsbgd, torch
import qpsbgd_qubo.kernels._kernels, qpsbgd_runtime.kernels._kernels
from qpsbgd.nn import BinaryLinear
print(qpsbgd.__file__)
layer = BinaryLinear(4, 2)
optimizer = qpsbgd.QPSBGD(layer)
layer(torch.ones(3, 4)).sum().backward()
optimizer.step()
"""

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """A folder with the wheel and the source archive."""
    folder = tmp_path_factory.mktemp("dist")
    command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", folder, ROOT]
    subprocess.run(command, check=True, capture_output=True)
    return folder


@pytest.fixture(scope="module")
def wheel(built):
    (found,) = built.glob("*.whl")
    return found


def install(python, wheel, folder):
    """Install the wheel alone; pip refuses a Python that its metadata does not allow."""
    command = [
        *python,
        "-m",
        "pip",
        "install",
        "--no-index",
        "--no-deps",
        "--no-compile",
        "--disable-pip-version-check",
    ]
    subprocess.run([*command, "--target", folder, wheel], check=True, capture_output=True)


def test_the_wheel_holds_the_packages_and_nothing_else(wheel):
    with zipfile.ZipFile(wheel) as archive:
        names = {name for name in archive.namelist() if ".dist-info/" not in name}
    ignored = {"__pycache__"}
    files = [path for path in (ROOT / "src").rglob("*") if path.is_file() and not ignored & set(path.parts)]
    expected = {
        path.relative_to(ROOT / "src").as_posix() for path in files if path.suffix not in (".cpp", ".hpp", ".so")
    }
    compiled = {name for name in names if "/kernels/_kernels." in name and not name.endswith(".pyi")}
    assert names - compiled == {name for name in expected if ".egg-info" not in name}
    assert {name.split("/")[0] for name in compiled} == {"qpsbgd_qubo", "qpsbgd_runtime"}
    for package in ("qpsbgd", "qpsbgd_qubo.files", "qpsbgd_paper", "qpsbgd_qubo", "qpsbgd_runtime"):
        assert f"{package}/py.typed" in names


def test_the_metadata_names_versions_extras_and_commands(wheel, tmp_path):
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(tmp_path)
    (folder,) = tmp_path.glob("*.dist-info")
    distribution = PathDistribution(folder)
    about = distribution.metadata
    assert (about["Version"], about["Requires-Python"]) == (qpsbgd.__version__, ">=3.10")
    assert about["License-Expression"] == "Apache-2.0"
    for version in VERSIONS:
        assert f"Programming Language :: Python :: {version}" in about.get_all("Classifier")
    assert {"cli", "dwave", "gurobi", "graph", "paper", "all", "docs"} <= set(about.get_all("Provides-Extra"))
    needed = {line.split(">")[0] for line in about.get_all("Requires-Dist") if "extra ==" not in line}
    assert needed == {"torch", "numpy"}
    commands = {point.name: point.value for point in distribution.entry_points if point.group == "console_scripts"}
    assert commands == {"qpsbgd": "qpsbgd.cli:main"}


def test_the_source_archive_holds_what_a_clone_holds(built):
    (path,) = built.glob("*.tar.gz")
    with tarfile.open(path) as archive:
        names = {name.split("/", 1)[1] for name in archive.getnames()}
    for name in ("README.md", "LICENSE", "Makefile", "mkdocs.yml", "docs/guide.md", "tests/test_release.py"):
        assert name in names
    assert not [name for name in names if name.startswith(("site/", ".ci", "results/", "dist/", ".venv"))]


def test_the_installed_wheel_trains_and_has_its_command(wheel, tmp_path):
    install([sys.executable], wheel, tmp_path)
    environment = os.environ | {"PYTHONPATH": str(tmp_path)}

    def output(*command):
        done = subprocess.run(command, env=environment, cwd=tmp_path, check=True, capture_output=True, text=True)
        return done.stdout

    assert Path(output(sys.executable, "-c", TRAINING).strip()) == tmp_path / "qpsbgd" / "__init__.py"
    listed = output(str(tmp_path / "bin" / "qpsbgd"), "--help")
    assert all(command in listed for command in ("solve", "run", "demo"))


@pytest.mark.parametrize("version", VERSIONS)
def test_every_supported_python_compiles_what_the_wheel_holds(version, wheel, tmp_path, monkeypatch):
    monkeypatch.setenv("PYENV_VERSION", version)  # which python3.x of pyenv is meant, where there is pyenv
    python = f"python{version}"
    try:
        subprocess.run([python, "-m", "pip", "--version"], check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError):
        pytest.skip(f"{python} with pip is not installed")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(tmp_path)
    subprocess.run([python, "-W", "error", "-m", "compileall", "-q", "-f", tmp_path], check=True, capture_output=True)
    code = "import sys, qpsbgd; print(*sys.version_info[:2], qpsbgd.__version__)"
    found = subprocess.run([python, "-c", code], cwd=tmp_path, check=True, capture_output=True, text=True).stdout
    assert found.split() == [*version.split("."), qpsbgd.__version__]
