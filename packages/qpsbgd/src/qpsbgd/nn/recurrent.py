"""Recurrent networks whose weights are layers, so that they can be binary."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence

from qpsbgd.nn.linear import linear_of

State = Tensor | tuple[Tensor, ...]


class UnrolledRecurrent(nn.Module):
    """nn.LSTM, nn.GRU or nn.RNN with its weights as the layers `inputs` and `recurrent`, step by step in Python.

    torch's own modules read their weights directly, which in binary layers are the latent ones. Both lists have a layer
    per stacked layer and direction, in torch's order: from inputs, called once for all steps, and from states, called
    in every step, to the gates.

    Args:
        network: The module whose weights are copied, if it `fits`; not an LSTM with `proj_size`.
    """

    def __init__(self, network: nn.RNNBase) -> None:
        super().__init__()
        self.mode, self.input_size, self.hidden_size = network.mode, network.input_size, network.hidden_size
        self.num_layers, self.dropout = network.num_layers, network.dropout
        self.batch_first, self.bidirectional = network.batch_first, network.bidirectional
        self.inputs, self.recurrent = nn.ModuleList(), nn.ModuleList()
        for tensors in network.all_weights:
            pairs = zip(tensors[:2], tensors[2:] or (None, None), strict=True)
            for layers, (weight, bias) in zip((self.inputs, self.recurrent), pairs, strict=True):
                layers.append(linear_of(weight, bias))
        self.train(network.training)

    @staticmethod
    def fits(network: nn.RNNBase) -> bool:
        """Whether a module can be expressed."""
        return type(network) in (nn.LSTM, nn.GRU, nn.RNN) and not network.proj_size

    def flatten_parameters(self) -> None:
        """Nothing: for models that call it, as torch's own modules have it."""

    def forward(self, input: Tensor | PackedSequence, hx: State | None = None) -> tuple[Tensor | PackedSequence, State]:
        """Outputs and last states, as torch's own module gives them."""
        if isinstance(input, PackedSequence):
            sizes, x = input.batch_sizes.tolist(), input.data
            states = self._states(hx, x, sizes[0], input.sorted_indices)
            x, last = self._run_layers(x, sizes, states)
            output = PackedSequence(x, input.batch_sizes, input.sorted_indices, input.unsorted_indices)
            return output, self._final_states(last, input.unsorted_indices)
        batched = input.ndim == 3
        x = input if batched else input[:, None]
        x = x.transpose(0, 1) if self.batch_first and batched else x
        if hx is not None and not batched:
            hx = tuple(state[:, None] for state in hx) if isinstance(hx, tuple) else hx[:, None]
        steps, count = x.shape[:2]
        x, last = self._run_layers(x.flatten(0, 1), [count] * steps, self._states(hx, x, count, None))
        x = x.reshape(steps, count, -1)
        if not batched:
            return x[:, 0], self._final_states(tuple(state[:, 0] for state in last), None)
        return x.transpose(0, 1) if self.batch_first else x, self._final_states(last, None)

    def _states(self, hx: State | None, x: Tensor, count: int, order: Tensor | None) -> tuple[Tensor, ...]:
        """The first states (layers, B, hidden), one or for an LSTM two, in the order of packed sequences."""
        if hx is None:
            shape = len(self.inputs), count, self.hidden_size
            return (x.new_zeros(shape),) * (2 if self.mode == "LSTM" else 1)
        states = hx if isinstance(hx, tuple) else (hx,)
        return states if order is None else tuple(state[:, order] for state in states)

    def _final_states(self, states: tuple[Tensor, ...], order: Tensor | None) -> State:
        states = states if order is None else tuple(state[:, order] for state in states)
        return states if self.mode == "LSTM" else states[0]

    def _run_layers(self, x: Tensor, sizes: list[int], states: tuple[Tensor, ...]) -> tuple[Tensor, tuple[Tensor, ...]]:
        """All layers for the rows of all steps, (Σ sizes, n), which are fewer and fewer."""
        directions, last = 2 if self.bidirectional else 1, []
        for layer in range(self.num_layers):
            if layer:
                x = nn.functional.dropout(x, self.dropout, self.training)
            parts = []
            for number in range(layer * directions, (layer + 1) * directions):
                outputs, end = self._run_direction(number, x, sizes, tuple(state[number] for state in states))
                parts.append(outputs)
                last.append(end)
            x = torch.cat(parts, -1)
        return x, tuple(torch.stack(parts) for parts in zip(*last, strict=True))

    def _run_direction(
        self, number: int, x: Tensor, sizes: list[int], first: tuple[Tensor, ...]
    ) -> tuple[Tensor, tuple[Tensor, ...]]:
        """One layer in one direction: rows of all steps, and the last states."""
        gates = self.inputs[number](x).split(sizes)
        backward = self.bidirectional and number % 2 == 1
        outputs: list[Tensor] = []
        states = first
        for step in reversed(range(len(sizes))) if backward else range(len(sizes)):
            now = self._step(gates[step], self.recurrent[number], tuple(state[: sizes[step]] for state in states))
            states = tuple(torch.cat([new, old[len(new) :]]) for new, old in zip(now, states, strict=True))
            outputs.append(now[0])
        return torch.cat(outputs[::-1] if backward else outputs), states

    def _step(self, gates: Tensor, recurrent: nn.Module, states: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        h, more = states[0], recurrent(states[0])
        if self.mode == "LSTM":
            entry, forget, new, out = (gates + more).chunk(4, -1)
            cell = forget.sigmoid() * states[1] + entry.sigmoid() * new.tanh()
            return out.sigmoid() * cell.tanh(), cell
        if self.mode == "GRU":
            (reset, update, new), (reset_h, update_h, new_h) = gates.chunk(3, -1), more.chunk(3, -1)
            new = (new + (reset + reset_h).sigmoid() * new_h).tanh()
            return (torch.lerp(new, h, (update + update_h).sigmoid()),)
        return (torch.relu(gates + more) if self.mode == "RNN_RELU" else torch.tanh(gates + more),)
