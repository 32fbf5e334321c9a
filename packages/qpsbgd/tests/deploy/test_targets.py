"""Every operation on every target: handled, or refused with its reason."""

from dataclasses import dataclass

import numpy as np
import pytest
from compiled_c import needs_compiler
from cortex_m import needs_cortex_m
from targets import outputs_on

from qpsbgd.deploy import PackedModel
from qpsbgd_runtime.image_operations import AveragePool, Convolution, MaxPool, Window
from qpsbgd_runtime.operations import Clip, Dense, Operation, Reshape, Sign, Spins, Weights
from qpsbgd_runtime.stages import KINDS
from qpsbgd_runtime.tensor_operations import (
    FUNCTIONS,
    Activation,
    Combine,
    Concatenate,
    Embedding,
    Mean,
    Normalize,
    Product,
    Slice,
    Softmax,
    Take,
    Transpose,
)
from qpsbgd_runtime.unit_operations import Quantize, Requantize, Scale, Steps, Threshold

RANDOM = np.random.default_rng(0)
SIGNS = Weights(RANDOM.random((1, 4, 6)) < 0.5)
IMAGES = Weights(RANDOM.random((1, 4, 2, 2, 2)) < 0.5)
WINDOW = Window((2, 2), (1, 1), ((0, 0), (0, 0)), (1, 1))
STEPS = Steps(-8, 7, -2)
SUMS = (Sign("a"), Dense("b", SIGNS, integer=True))
WIDE = np.array([3, -1, 2, 5])
LINES = Requantize("c", WIDE, WIDE, 2, -8 + 0 * WIDE.astype(np.int32), 7 + 0 * WIDE.astype(np.int32), (), STEPS)
SCALE = Scale("d", np.array([0.5, -1, 2, 3], np.float32), RANDOM.standard_normal(4).astype(np.float32))
TABLE = Embedding("a", RANDOM.standard_normal((5, 3)).astype(np.float32))

HANDLED = {
    "Dense": ((Dense("a", SIGNS),), (6,)),
    "Convolution": ((Convolution("a", IMAGES, WINDOW),), (2, 3, 4)),
    "MaxPool": ((MaxPool("a", WINDOW),), (2, 3, 4)),
    "AveragePool": ((AveragePool("a", WINDOW, False, 2),), (2, 3, 4)),
    "Sign": ((Sign("a"), Spins("b")), (6,)),
    "Spins": ((*SUMS, Threshold("c", WIDE.astype(np.int32), WIDE > 2), Spins("d")), (6,)),
    "Threshold": ((*SUMS, Threshold("c", WIDE.astype(np.int32), WIDE > 0), Spins("d")), (6,)),
    "Quantize": ((Quantize("a", STEPS), Scale("b", *np.array([[0.25], [0]], np.float32))), (6,)),
    "Requantize": ((*SUMS, LINES, SCALE), (6,)),
    "Scale": ((*SUMS, SCALE), (6,)),
    "Clip": ((Clip("a", -0.5, 0.25),), (6,)),
    "Reshape": ((Reshape("a", (3, 2)), Transpose("b", (1, 0))), (6,)),
    **{f"Activation, {name}": ((Activation("a", name, 0.3),), (6,)) for name in FUNCTIONS},
    "Softmax": ((Softmax("a", 0),), (3, 4)),
    "Normalize": ((Normalize("a", 1e-5),), (3, 4)),
    "Mean": ((Mean("a", (0,)),), (3, 4)),
    "Transpose": ((Transpose("a", (2, 0, 1)),), (2, 3, 4)),
    "Slice": ((Slice("a", 1, 1, 3),), (3, 4)),
    "Take": ((Take("a", -1, np.array([2, -1, 0], np.int32), 0.5),), (3, 4)),
    "Embedding": ((TABLE,), (4,)),
    "Combine": ((Combine("a", "subtract", np.ones((1, 4), np.float32)),), (3, 4)),
    "Concatenate": ((Concatenate("a", 0, inputs=(0, 0)),), (3, 4)),
    "Product": ((Transpose("a", (1, 0)), Product("b", inputs=(0, 1))), (3, 4)),
}
"""For every operation a network with it and the shape of a sample."""


@dataclass(frozen=True, eq=False)
class Unknown(Operation):
    """An operation that no target has."""


ROWS = (Reshape("a", (3, 6)), *SUMS, Threshold("c", WIDE.astype(np.int32), WIDE > 0, -1))
REFUSED = {
    "C looks up inputs alone": ("C", (Clip("a", 0.0, 4.0), TABLE), (4,), "must take the network's inputs themselves"),
    "C has no images of rows": (
        *("C", (*ROWS, Reshape("r", (3, 2, 2)), MaxPool("d", WINDOW), Spins("e")), (18,)),
        "a different order",
    ),
    "C has no such statements": ("C", (Unknown("a"),), (4,), "cannot be written in C"),
    "ONNX has no such nodes": ("ONNX", (Unknown("a"),), (4,), "cannot be written as ONNX"),
}
"""What a target refuses, with a part of its reason."""


def test_every_operation_has_a_network_with_it():
    assert {name.split(",")[0] for name in HANDLED} == set(KINDS)
    for name, (operations, _) in HANDLED.items():
        assert any(isinstance(operation, KINDS[name.split(",")[0]]) for operation in operations)


@needs_compiler
@pytest.mark.parametrize("target", ["C", "ONNX", pytest.param("Cortex-M4", marks=[pytest.mark.slow, needs_cortex_m])])
@pytest.mark.parametrize("name", HANDLED)
def test_every_operation_gives_on_every_target_what_it_gives_packed(name, target, tmp_path):
    operations, shape = HANDLED[name]
    inputs = RANDOM.standard_normal((5, *shape)).astype(np.float32)
    if name == "Embedding":
        inputs = RANDOM.integers(0, 5, (5, *shape)).astype(np.float32)
    model = PackedModel(operations, shape)
    if target != "ONNX" and isinstance(operations[0], Quantize):  # whose inputs in C are integers
        inputs = np.rint(inputs / 0.25) * np.float32(0.25)
    expected = outputs_on("packed", model, inputs, tmp_path)
    np.testing.assert_allclose(outputs_on(target, model, inputs, tmp_path), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", REFUSED)
def test_what_a_target_does_not_have_is_refused_with_its_reason(name, tmp_path):
    target, operations, shape, reason = REFUSED[name]
    with pytest.raises((TypeError, ValueError), match=reason):
        outputs_on(target, PackedModel(operations, shape), np.zeros((1, *shape), np.float32), tmp_path)


def test_a_packed_model_refuses_an_operation_without_a_step_when_it_runs():
    with pytest.raises(TypeError, match="has no step in numpy"):
        PackedModel((Unknown("a"),), (4,))(np.zeros((1, 4), np.float32))
