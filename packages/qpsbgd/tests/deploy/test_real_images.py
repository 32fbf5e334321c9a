"""Networks that are not chains, trained on scikit-learn's digits: every target gives torch's classes."""

import shutil
import subprocess

import numpy as np
import onnxruntime
import pytest
import torch
import torch.nn.functional as F
from graph_networks import BinaryResNet, DenseNet, MobileNet, ResNet

from qpsbgd.deploy import load_packed, pack, to_c, to_onnx


@pytest.fixture(scope="module")
def digits():
    """Images (600, 3, 8, 8) in three shades, and which of four classes they have."""
    images, labels = pytest.importorskip("sklearn.datasets").load_digits(return_X_y=True)
    grey = torch.tensor(images / 8 - 1, dtype=torch.float32).view(-1, 1, 8, 8)
    return torch.cat([grey, grey.square(), -grey], 1)[:600], torch.tensor(labels)[:600] % 4


@pytest.mark.slow
@pytest.mark.parametrize("build", [ResNet, BinaryResNet, MobileNet, DenseNet])
def test_trained_networks_have_torchs_classes_for_real_images(build, digits, tmp_path):
    torch.manual_seed(0)
    model, (images, labels) = build(), digits
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    for rows in torch.randperm(600).split(60):
        optimizer.zero_grad()
        F.cross_entropy(model(images[rows]), labels[rows]).backward()
        optimizer.step()
    with torch.no_grad():
        expected = model.eval()(images)
    best = expected.topk(2).values
    clear = (best[:, 0] - best[:, 1] > 1e-4).numpy()
    assert clear.mean() > 0.7  # sums of bits are integers, often the same ones
    rows, classes = images.numpy(), expected.argmax(1).numpy()
    pack(model, tmp_path / "net", input_shape=(3, 8, 8))
    found = {"packed": load_packed(tmp_path / "net")(rows).argmax(1)}
    to_onnx(model, tmp_path / "net.onnx", input_shape=(3, 8, 8))
    session = onnxruntime.InferenceSession(tmp_path / "net.onnx", providers=["CPUExecutionProvider"])
    found["onnx"] = session.run(None, {"input": rows})[0].argmax(1)
    if shutil.which("gcc"):
        source = to_c(model, tmp_path, input_shape=(3, 8, 8))
        files = [path for path in source.files if path.suffix == ".c"]
        subprocess.run(["gcc", "-std=c99", "-O2", *files, "-o", tmp_path / "net.exe", "-lm"], check=True)
        text = "\n".join(" ".join(f"{value:.9g}" for value in row.ravel()) for row in rows)
        done = subprocess.run([tmp_path / "net.exe"], input=text, capture_output=True, text=True, check=True)
        found["c"] = np.array([int(line.split(":")[0]) for line in done.stdout.splitlines()])
    for target, given in found.items():
        np.testing.assert_array_equal(given[clear], classes[clear], target)
