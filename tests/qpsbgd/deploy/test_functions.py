import numpy as np
import torch
from torch import nn

from qpsbgd.deploy import pack
from qpsbgd.nn import BinaryLinear


class Parts(nn.Module):
    """A range of what a layer gives, times one of its numbers."""

    def __init__(self):
        super().__init__()
        self.layer = BinaryLinear(4, 4)

    def forward(self, x):
        x = self.layer(x)
        return x[:, 1:3] * x[:, 2].unsqueeze(1) + x[:, -2].unsqueeze(1)


def test_numbers_and_ranges_take_out_what_they_do_in_torch():
    model, inputs = Parts(), torch.randn(6, 4)
    packed = pack(model, input_shape=(4,))
    np.testing.assert_allclose(packed(inputs.numpy()), model(inputs).detach().numpy(), atol=1e-6)
