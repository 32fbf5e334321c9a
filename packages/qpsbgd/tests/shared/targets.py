"""The outputs of a network on every target."""

import numpy as np
import onnxruntime
from compiled_c import COMPILERS, output_step, outputs_in_c
from cortex_m import run as run_on_cortex_m

from qpsbgd.deploy import load_packed, pack, to_c, to_onnx

TARGETS = ("packed", "ONNX", *(["C"] if COMPILERS else []))


def outputs_on(target, model, inputs, folder, *flags):
    """The outputs (B, m) for inputs (B, …) of a torch model or a packed one; `flags` are the C compiler's."""
    shape = inputs.shape[1:]
    if target == "packed":
        pack(model, folder / "net.safetensors", input_shape=shape)
        return load_packed(folder / "net.safetensors")(inputs).reshape(len(inputs), -1)
    if target == "ONNX":
        to_onnx(model, folder / "net.onnx", input_shape=shape)
        return onnx_outputs(folder / "net.onnx", inputs).reshape(len(inputs), -1)
    source = to_c(model, folder / "c", input_shape=shape)
    if target == "Cortex-M4":
        return run_on_cortex_m("m4", *source.files[:1], source.files[1:3], inputs).outputs * output_step(source)
    return outputs_in_c(source, inputs, *flags)


def onnx_outputs(path, inputs):
    """What onnxruntime computes on one core, (B, …)."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    return session.run(None, {"input": inputs.astype(np.float32)})[0]
