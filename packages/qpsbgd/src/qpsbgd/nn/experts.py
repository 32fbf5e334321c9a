"""Experts of a mixture whose weights are layers, so that they can be binary."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor, nn

from qpsbgd.nn.linear import linear_of

_DECLARED = ("has_gate", "has_bias", "is_transposed", "has_post_expert_norm", "_apply_gate")


class ExpertLayers(nn.Module):
    """Experts that transformers stores as one tensor per projection, with the layers `up` and `down` for each.

    Expert k is the module `k`; its `up` gives gates and values together. Tokens go through one expert after the other.

    Args:
        experts: The module whose weights are copied, if it `fits`: of a class with transformers'
            `use_experts_implementation`.

    Attributes:
        tokens: A mask (T,) of the tokens that the expert at work has been given.
        calls_all: Call experts without tokens, too, so that all have a place in the order of calls.
    """

    tokens: Tensor | None = None
    calls_all = False

    def __init__(self, experts: Any) -> None:
        super().__init__()
        self.rest = copy.copy(experts)  # its gate, its activation and its norm
        self.rest._modules, self.rest._parameters = dict(experts._modules), dict(experts._parameters)
        self.rest._is_hf_initialized = True  # transformers would initialise the weights that it no longer has
        layers = [self._layers(name) for name in ("gate_up_proj" if experts.has_gate else "up_proj", "down_proj")]
        for number, (up, down) in enumerate(zip(*layers, strict=True)):
            self.add_module(str(number), nn.ModuleDict({"up": up, "down": down}))
        self.train(experts.training)

    @staticmethod
    def fits(module: Any) -> bool:
        """Whether a module can be expressed."""
        if not all(hasattr(module, name) for name in _DECLARED) or getattr(module, "_is_expert_parallel", False):
            return False
        held = (
            module._parameters.get(name) for name in ("gate_up_proj" if module.has_gate else "up_proj", "down_proj")
        )
        return all(weight is not None and weight.ndim == 3 for weight in held)

    def _layers(self, name: str) -> list[nn.Linear]:
        weights, biases = (self.rest._parameters.pop(key, None) for key in (name, f"{name}_bias"))
        assert weights is not None
        each = weights.mT if self.rest.is_transposed else weights
        return [linear_of(weight, None if biases is None else biases[k]) for k, weight in enumerate(each)]

    def forward(self, hidden_states: Tensor, top_k_index: Tensor, top_k_weights: Tensor) -> Tensor:
        """Σ_k weight · expert k of tokens (…, n), each of which goes to the experts (T, K) with the weights (T, K)."""
        x, rest = hidden_states.reshape(-1, hidden_states.shape[-1]), self.rest
        result = torch.zeros_like(x)
        activated = rest._apply_gate if rest.has_gate else rest.act_fn
        for number, expert in self.named_children():
            if not isinstance(expert, nn.ModuleDict):
                continue
            chosen = top_k_index == int(number)
            self.tokens = chosen.any(-1)
            if not (self.calls_all or self.tokens.any()):
                continue
            output = expert["down"](activated(expert["up"](x[self.tokens])))
            output = rest.post_expert_norm(output) if rest.has_post_expert_norm else output
            output = output * top_k_weights[chosen][:, None]
            result.index_add_(0, self.tokens.nonzero()[:, 0], output.to(result.dtype))
        return result.reshape(hidden_states.shape)
