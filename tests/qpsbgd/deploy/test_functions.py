import numpy as np
import pytest
import torch
import torch.nn.functional as F
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


class Attending(nn.Module):
    def __init__(self, dropout):
        super().__init__()
        self.layer, self.dropout = BinaryLinear(4, 4), dropout

    def forward(self, x):
        x = self.layer(x)
        return F.scaled_dot_product_attention(x, x, x, dropout_p=self.dropout)


def test_attention_that_drops_at_random_even_in_evaluation_is_refused():
    pack(Attending(0.0), input_shape=(3, 4))
    with pytest.raises(ValueError, match="dropout_p"):
        pack(Attending(0.1), input_shape=(3, 4))


class Stacked(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = BinaryLinear(4, 4)

    def forward(self, x):
        x = self.layer(x)
        return torch.cat([x, x])


def test_batches_cannot_be_joined():
    with pytest.raises(ValueError, match="batch"):
        pack(Stacked(), input_shape=(4,))
