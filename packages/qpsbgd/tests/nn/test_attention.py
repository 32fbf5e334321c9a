import pytest
import torch
from torch import nn

from qpsbgd.nn.attention import ProjectedAttention


@pytest.mark.parametrize(
    ("batch_first", "need_weights", "sizes"),
    [(False, True, {}), (True, False, {"kdim": 5, "vdim": 3}), (True, True, {"bias": False})],
)
def test_projected_attention_computes_what_torchs_does(batch_first, need_weights, sizes):
    torch.manual_seed(0)
    theirs = nn.MultiheadAttention(8, 2, batch_first=batch_first, **sizes).eval()
    ours = ProjectedAttention.of(theirs)
    query, key, value = torch.randn(4, 6, 8), torch.randn(4, 7, theirs.kdim), torch.randn(4, 7, theirs.vdim)
    padding = torch.zeros(4, 7, dtype=torch.bool)
    padding[1, 5:] = True
    allowed = torch.randn(6, 7)
    per_head = torch.randn(8, 6, 7) > 1
    per_head[:, :, 0] = False
    for masks in ({}, {"key_padding_mask": padding}, {"attn_mask": allowed}, {"attn_mask": per_head}):
        parts = [x if batch_first else x.transpose(0, 1) for x in (query, key, value)]
        for average in (True, False):
            options = {**masks, "need_weights": need_weights, "average_attn_weights": average}
            wanted, found = theirs(*parts, **options), ours(*parts, **options)
            torch.testing.assert_close(found[0], wanted[0])
            assert (found[1] is None) == (wanted[1] is None)
            if need_weights:
                torch.testing.assert_close(found[1], wanted[1])


def test_sequences_without_a_batch_and_causal_masks_work():
    torch.manual_seed(0)
    theirs = nn.MultiheadAttention(8, 2).eval()
    ours, x = ProjectedAttention.of(theirs), torch.randn(6, 8)
    mask = nn.Transformer.generate_square_subsequent_mask(6)
    for options in ({}, {"attn_mask": mask, "is_causal": True, "need_weights": False}):
        wanted, found = theirs(x, x, x, **options), ours(x, x, x, **options)
        torch.testing.assert_close(found[0], wanted[0])
    with pytest.raises(RuntimeError, match="needs attn_mask"):
        ours(x, x, x, is_causal=True)


def test_appended_keys_and_values_are_refused():
    for options in ({"add_bias_kv": True}, {"add_zero_attn": True}):
        attention = nn.MultiheadAttention(8, 2, **options)
        assert not ProjectedAttention.fits(attention)
        with pytest.raises(ValueError, match="add_bias_kv and add_zero_attn"):
            ProjectedAttention.of(attention)
