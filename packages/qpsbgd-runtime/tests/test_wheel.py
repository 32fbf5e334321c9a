"""qpsbgd-runtime: the wheel, built by way of its source archive, installed without torch and used."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import safetensors
import torch
from graph_networks import GRAPHS, trained

import qpsbgd
from qpsbgd.deploy import pack

RUNTIME = Path(__file__).parents[1]
RUN = """
import json, sys
import numpy as np
from qpsbgd_runtime import load_packed
from qpsbgd_runtime.kernels import kernels
inputs = np.load("inputs.npz")
np.savez("outputs.npz", **{name: load_packed(f"{name}.safetensors")(rows) for name, rows in inputs.items()})
loaded = [name for name in ("torch", "qpsbgd") if name in sys.modules or __import__("importlib").util.find_spec(name)]
print(json.dumps([kernels.__name__, loaded]))
"""


def test_the_runtime_has_the_version_of_the_library():
    about = (RUNTIME / "pyproject.toml").read_text()
    initial = (RUNTIME / "src" / "qpsbgd_runtime" / "__init__.py").read_text()
    assert f'\nversion = "{qpsbgd.__version__}"' in about and f'__version__ = "{qpsbgd.__version__}"' in initial
    assert re.search(r"^dependencies = (.*)", about, re.M)[1] == '["numpy>=1.26", "safetensors>=0.4.3"]'


@pytest.mark.slow
def test_the_wheel_runs_packed_networks_where_torch_is_not_installed(tmp_path):
    command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", tmp_path, RUNTIME]
    subprocess.run(command, check=True, capture_output=True)
    (wheel,) = tmp_path.glob("*.whl")
    command = [sys.executable, "-m", "pip", "install", "--no-index", "--no-deps", "--target", tmp_path / "site", wheel]
    subprocess.run(command, check=True, capture_output=True)
    size = sum(path.stat().st_size for path in (tmp_path / "site").rglob("*") if path.is_file())
    assert size < 40e6
    for package in (np, safetensors):  # and nothing else of this environment
        folder = Path(package.__file__).parent
        for path in (folder, folder.with_name(f"{folder.name}.libs")):
            if path.exists():
                (tmp_path / "site" / path.name).symlink_to(path)
    torch.manual_seed(0)
    inputs, expected = {}, {}
    for name, (shape, build) in GRAPHS.items():
        key = name.replace(" ", "_")
        inputs[key] = torch.randn(3, *shape).numpy()
        expected[key] = pack(trained(build()), tmp_path / f"{key}.safetensors", input_shape=shape)(inputs[key])
    np.savez(tmp_path / "inputs.npz", **inputs)
    environment = {**os.environ, "PYTHONPATH": str(tmp_path / "site")}
    done = subprocess.run(
        [sys.executable, "-S", "-c", RUN], cwd=tmp_path, env=environment, capture_output=True, text=True, check=True
    )
    assert json.loads(done.stdout) == ["qpsbgd_runtime.kernels._kernels", []]
    outputs = np.load(tmp_path / "outputs.npz")
    for key, rows in expected.items():
        np.testing.assert_array_equal(outputs[key], rows)
