"""What a release consists of: source archives, wheels made from them, and what each of these does when it is alone."""

import os
import subprocess
import sys
import tarfile
import zipfile
from importlib.metadata import PathDistribution, files
from pathlib import Path

import numpy as np
import pytest
import torch
from graph_networks import GRAPHS, trained

import qpsbgd
from qpsbgd.deploy import pack

ROOT = Path(__file__).parents[1]
PACKAGES = {"qpsbgd-qubo": "qpsbgd_qubo", "qpsbgd-runtime": "qpsbgd_runtime", "qpsbgd": "qpsbgd"}
VERSIONS = ("3.10", "3.11", "3.12", "3.13")
NEEDED = {
    "qpsbgd-qubo": {"numpy"},
    "qpsbgd-runtime": {"numpy", "safetensors"},
    "qpsbgd": {"numpy", "torch", "qpsbgd-qubo", "qpsbgd-runtime"},
}
TESTING = ("pytest", "pluggy", "iniconfig", "packaging", "pygments", "hypothesis", "sortedcontainers")
TRAINING = """
import qpsbgd, torch
from qpsbgd.nn import BinaryLinear
layer = BinaryLinear(4, 2)
optimizer = qpsbgd.QPSBGD(layer)
layer(torch.ones(3, 4)).sum().backward()
optimizer.step()
print(qpsbgd.__file__)
"""
PACKED = """
import sys
import numpy as np
from qpsbgd_runtime import load_packed
inputs = np.load("inputs.npz")
np.savez("outputs.npz", **{name: load_packed(f"{name}.safetensors")(rows) for name, rows in inputs.items()})
print(sorted(name for name in sys.modules if name in ("torch", "qpsbgd", "qpsbgd_qubo")))
"""

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """Folders by package, each with its source archive and the wheel that was built from it."""
    folders = {}
    for name in PACKAGES:
        folders[name] = tmp_path_factory.mktemp(name)
        command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", folders[name], ROOT / "packages" / name]
        subprocess.run(command, check=True, capture_output=True)
    return folders


@pytest.fixture(scope="module")
def wheels(built):
    return {name: next(folder.glob("*.whl")) for name, folder in built.items()}


def environment_of(folder, wheels, *names, others=()):
    """The Python of a new environment with these wheels and links to these packages of this one, and nothing else."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True)
    python = folder / "bin" / "python"
    command = [sys.executable, "-m", "pip", "--python", python, "install", "--no-index", "--no-deps", "--quiet"]
    subprocess.run([*command, *(wheels[name] for name in names)], check=True, capture_output=True)
    site = next(folder.glob("lib/python*/site-packages"))
    here = Path(np.__file__).parents[1]
    for other in {file.parts[0] for distribution in ("numpy", *others) for file in files(distribution)} - {".."}:
        (site / other).symlink_to(here / other)
    return python


def output(python, code, **options):
    environment = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "PYTHONHOME")}
    done = subprocess.run([python, "-c", code], env=environment, capture_output=True, text=True, **options)
    assert done.returncode == 0, done.stderr
    return done.stdout


def names_in(wheel):
    with zipfile.ZipFile(wheel) as archive:
        return {name for name in archive.namelist() if ".dist-info/" not in name}


@pytest.mark.parametrize("name", PACKAGES)
def test_a_wheel_holds_its_package_and_nothing_else(name, wheels):
    source = ROOT / "packages" / name / "src"
    tracked = subprocess.run(["git", "ls-files", "."], cwd=source, check=True, capture_output=True, text=True).stdout
    expected = {file for file in tracked.split() if not file.endswith((".cpp", ".hpp"))}
    compiled = {file for file in names_in(wheels[name]) if "/kernels/_kernels." in file and not file.endswith(".pyi")}
    assert names_in(wheels[name]) - compiled == expected
    assert len(compiled) == (0 if name == "qpsbgd" else 1)
    assert f"{PACKAGES[name]}/py.typed" in expected


def test_no_two_wheels_own_the_same_file(wheels):
    files = [name for wheel in wheels.values() for name in names_in(wheel)]
    assert len(files) == len(set(files))


@pytest.mark.parametrize("name", PACKAGES)
def test_a_source_archive_holds_what_it_takes_to_build_and_test_it(name, built):
    with tarfile.open(next(built[name].glob("*.tar.gz"))) as archive:
        names = {file.split("/", 1)[1] for file in archive.getnames()}
    for file in ("README.md", "LICENSE", "pyproject.toml", "tests/conftest.py", "tests/shared/suite.py"):
        assert file in names
    assert not [file for file in names if file.endswith(".so") or file.startswith(("build", ".venv", "dist"))]


@pytest.mark.parametrize("name", PACKAGES)
def test_the_metadata_name_versions_and_requirements(name, wheels, tmp_path):
    with zipfile.ZipFile(wheels[name]) as archive:
        archive.extractall(tmp_path)
    distribution = PathDistribution(next(tmp_path.glob("*.dist-info")))
    about = distribution.metadata
    assert (about["Version"], about["Requires-Python"]) == (qpsbgd.__version__, ">=3.10")
    assert about["License-Expression"] == "Apache-2.0"
    for python in VERSIONS:
        assert f"Programming Language :: Python :: {python}" in about.get_all("Classifier")
    required = {line for line in about.get_all("Requires-Dist") if "extra ==" not in line}
    assert {line.split(">")[0].split("<")[0] for line in required} == NEEDED[name]
    ranges = {line for line in required if line.startswith("qpsbgd")}
    assert all(">=0.1" in line and "<0.2" in line for line in ranges), "an exact version range for our own packages"
    commands = {point.name for point in distribution.entry_points if point.group == "console_scripts"}
    assert commands == {"qpsbgd-runtime": set()}.get(name, {name})


def test_the_solvers_pass_their_tests_where_nothing_but_numpy_is(wheels, tmp_path):
    python = environment_of(tmp_path / "alone", wheels, "qpsbgd-qubo", others=TESTING)
    suite_passes(python, "qpsbgd-qubo")
    problem = tmp_path / "problem.coo"
    problem.write_text("0 0 1\n0 1 -2\n")
    command = [python.with_name("qpsbgd-qubo"), "solve", problem, "--out", tmp_path / "spins.txt"]
    subprocess.run(command, check=True, capture_output=True)
    assert (tmp_path / "spins.txt").exists()


def test_the_runtime_passes_its_tests_where_nothing_but_numpy_and_safetensors_is(wheels, tmp_path):
    python = environment_of(tmp_path / "alone", wheels, "qpsbgd-runtime", others=["safetensors", *TESTING])
    suite_passes(python, "qpsbgd-runtime")


def suite_passes(python, name):
    folder = ROOT / "packages" / name
    flags = ["-m", "pytest", "-p", "no:cacheprovider", "-m", "not slow", "tests"]
    done = subprocess.run([python, *flags], cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-5000:]
    assert " passed" in done.stdout


def test_packed_networks_run_where_torch_is_not_installed(wheels, tmp_path):
    python = environment_of(tmp_path / "alone", wheels, "qpsbgd-runtime", others=["safetensors"])
    torch.manual_seed(0)
    inputs, expected = {}, {}
    for name, (shape, build) in GRAPHS.items():
        key = name.replace(" ", "_")
        inputs[key] = torch.randn(3, *shape).numpy()
        expected[key] = pack(trained(build()), tmp_path / f"{key}.safetensors", input_shape=shape)(inputs[key])
    np.savez(tmp_path / "inputs.npz", **inputs)
    assert output(python, PACKED, cwd=tmp_path).strip() == "[]"
    outputs = np.load(tmp_path / "outputs.npz")
    for key, rows in expected.items():
        np.testing.assert_array_equal(outputs[key], rows)


def test_the_installed_wheels_train_and_have_their_command(wheels, tmp_path):
    python = environment_of(tmp_path / "all", wheels, *PACKAGES, others=["safetensors"])
    site = Path(np.__file__).parents[1]
    paths = (tmp_path / "all" / "lib").glob("python*/site-packages/")
    (next(iter(paths)) / "others.pth").write_text(f"{site}\n")  # without its editable installations
    assert Path(output(python, TRAINING, cwd=tmp_path).strip()).is_relative_to(tmp_path / "all")
    listed = subprocess.run([python.with_name("qpsbgd"), "solvers"], capture_output=True, text=True, check=True).stdout
    assert all(solver in listed for solver in ("auto", "exact", "descent", "dwave"))


@pytest.mark.parametrize("python", VERSIONS)
def test_every_supported_python_compiles_what_the_wheels_hold(python, wheels, tmp_path, monkeypatch):
    monkeypatch.setenv("PYENV_VERSION", python)  # which python3.x of pyenv is meant, where there is pyenv
    try:
        subprocess.run([f"python{python}", "--version"], check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError):
        pytest.skip(f"python{python} is not installed")
    for wheel in wheels.values():
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(tmp_path)
    command = [f"python{python}", "-W", "error", "-m", "compileall", "-q", "-f", tmp_path]
    subprocess.run(command, check=True, capture_output=True)


def test_a_clone_installs_with_one_line(tmp_path):
    """`pip install ./packages/*`, as every page says; here without what comes from an index."""
    command = [sys.executable, "-m", "pip", "install", "--no-build-isolation", "--no-index", "--no-deps"]
    packages = [ROOT / "packages" / name for name in PACKAGES]
    subprocess.run([*command, "--target", tmp_path, *packages], check=True, capture_output=True)
    installed = {about["Name"]: about["Version"] for about in map(metadata_of, tmp_path.glob("*.dist-info"))}
    assert installed == dict.fromkeys(PACKAGES, qpsbgd.__version__)


def metadata_of(folder):
    return PathDistribution(folder).metadata
