"""Multi-head attention whose projections are layers, so that they can be binary."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, fx, nn

from qpsbgd.nn.linear import linear_of


class ProjectedAttention(nn.Module):
    """nn.MultiheadAttention with its projections as the layers `query`, `key`, `value` and `output`.

    nn.MultiheadAttention itself reads its projections' weights directly, which in binary layers are the latent ones.

    Args:
        query: Layer from queries to heads · width numbers.
        key: The same for keys.
        value: The same for values.
        output: Layer from heads · width numbers to the output.
        num_heads: Heads.
        dropout: Share of the attention weights that are dropped in training.
        batch_first: Whether batches come first, (B, T, n), or second, (T, B, n).
    """

    # What torch's transformer layers look at before they take their fused path, which this module does not have.
    in_proj_weight = in_proj_bias = None
    _qkv_same_embed_dim = False

    def __init__(
        self,
        query: nn.Module,
        key: nn.Module,
        *,
        value: nn.Module,
        output: nn.Module,
        num_heads: int,
        dropout: float = 0.0,
        batch_first: bool = False,
    ) -> None:
        super().__init__()
        self.query, self.key, self.value, self.output = query, key, value, output
        self.num_heads, self.dropout, self.batch_first = num_heads, dropout, batch_first

    @staticmethod
    def fits(attention: nn.MultiheadAttention) -> bool:
        """Whether a module can be expressed: not with biases or zeros that it appends to keys and values."""
        return attention.bias_k is None and attention.bias_v is None and not attention.add_zero_attn

    @classmethod
    def of(cls, attention: nn.MultiheadAttention) -> ProjectedAttention:
        """The same attention with nn.Linear projections, which hold copies of its weights."""
        if not cls.fits(attention):
            raise ValueError("add_bias_kv and add_zero_attn cannot be expressed; build the attention without them")
        if attention.in_proj_weight is not None:
            weights = attention.in_proj_weight.chunk(3)
        else:
            weights = (attention.q_proj_weight, attention.k_proj_weight, attention.v_proj_weight)
        biases = (None,) * 3 if attention.in_proj_bias is None else attention.in_proj_bias.chunk(3)
        parts = [*zip(weights, biases, strict=True), (attention.out_proj.weight, attention.out_proj.bias)]
        query, key, value, output = (linear_of(weight, bias) for weight, bias in parts)
        options = {name: getattr(attention, name) for name in ("num_heads", "dropout", "batch_first")}
        return cls(query, key, value=value, output=output, **options).train(attention.training)

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        key_padding_mask: Tensor | None = None,
        need_weights: bool = True,
        attn_mask: Tensor | None = None,
        average_attn_weights: bool = True,
        is_causal: bool = False,
    ) -> tuple[Tensor, Tensor | None]:
        """Outputs and attention weights, as in nn.MultiheadAttention; `is_causal` needs its `attn_mask`, as there."""
        if is_causal and attn_mask is None:
            raise RuntimeError("is_causal needs attn_mask, as in nn.MultiheadAttention")
        traced = isinstance(query, fx.Proxy)  # for deployment: of batches, without the weights
        if not traced and query.ndim == 2:
            batch = 0 if self.batch_first else 1
            parts = (x.unsqueeze(batch) for x in (query, key, value))
            output, weights = self(*parts, key_padding_mask, need_weights, attn_mask, average_attn_weights)
            return output.squeeze(batch), None if weights is None else weights[0]
        if not self.batch_first:
            query, key, value = (x.transpose(0, 1) for x in (query, key, value))
        q, k, v = self._heads(self.query(query)), self._heads(self.key(key)), self._heads(self.value(value))
        mask = self._mask(attn_mask, key_padding_mask, q)
        weights = None
        if need_weights and not traced:
            scores = q @ k.transpose(-2, -1) / math.sqrt(q.shape[-1])
            weights = torch.softmax(scores if mask is None else scores + mask, -1)
            weights = F.dropout(weights, self.dropout, self.training)
            mixed = weights @ v
            weights = weights.mean(1) if average_attn_weights else weights
        else:
            mixed = F.scaled_dot_product_attention(q, k, v, mask, self.dropout if self.training else 0.0)
        output = self.output(mixed.transpose(1, 2).flatten(2))
        return output if self.batch_first else output.transpose(0, 1), weights

    def _heads(self, x: Tensor) -> Tensor:
        """(B, T, heads · width) → (B, heads, T, width)."""
        return x.reshape(x.shape[0], x.shape[1], self.num_heads, -1).transpose(1, 2)

    def _mask(self, attn_mask: Tensor | None, padding: Tensor | None, q: Tensor) -> Tensor | None:
        """Both masks as one that is added to the scores (B, heads, T, S)."""
        parts = []
        if attn_mask is not None:
            whole = _additive_mask(attn_mask, q)
            heads = (len(q), self.num_heads) if whole.ndim == 3 else (1, 1)
            parts.append(whole.reshape(*heads, *whole.shape[-2:]))
        if padding is not None:
            parts.append(_additive_mask(padding, q).reshape(len(q), 1, 1, -1))
        return sum(parts[1:], parts[0]) if parts else None


def _additive_mask(mask: Tensor, like: Tensor) -> Tensor:
    """A mask in which True forbids, or one that is added already, as one that is added."""
    if mask.dtype != torch.bool:
        return mask.to(like.dtype)
    return torch.zeros(mask.shape, dtype=like.dtype, device=like.device).masked_fill(mask, -torch.inf)
