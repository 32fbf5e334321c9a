import itertools
from functools import partial

import pytest
import torch
from torch import nn
from torch.nn.utils.rnn import pack_sequence

from qpsbgd.nn.recurrent import UnrolledRecurrent

KINDS = {"LSTM": nn.LSTM, "GRU": nn.GRU, "RNN": nn.RNN, "relu": partial(nn.RNN, nonlinearity="relu")}


def flat(parts):
    return [leaf for part in parts for leaf in (flat(part) if isinstance(part, tuple) else [part])]


@pytest.mark.parametrize(("kind", "layers", "both"), [*itertools.product(KINDS, (1, 2), (False, True))])
def test_unrolled_networks_compute_what_torchs_own_do(kind, layers, both):
    torch.manual_seed(0)
    network = KINDS[kind](3, 4, num_layers=layers, bidirectional=both, batch_first=layers == 2, bias=layers == 1)
    unrolled, x = UnrolledRecurrent(network), torch.randn(5, 6, 3)
    state = torch.randn(layers * (1 + both), 6 if layers == 1 else 5, 4)
    states = (state, state + 1) if kind == "LSTM" else state
    packed = pack_sequence([torch.randn(n, 3) for n in (2, 5, 1)], enforce_sorted=False)
    for given in ((x,), (x, states), (x[0],), (packed,)):
        torch.testing.assert_close(flat(unrolled(*given)), flat(network(*given)))


def test_an_lstm_with_projections_is_not_unrolled():
    assert not UnrolledRecurrent.fits(nn.LSTM(3, 4, proj_size=2))
