import importlib

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from qpsbgd import binarize
from qpsbgd.binarization.passes import Passes
from qpsbgd.nn import BinaryConv1d, BinaryConv2d, BinaryLayer, BinaryLinear, convert
from qpsbgd.nn.attention import ProjectedAttention
from qpsbgd.nn.experts import ExpertLayers

CONVOLUTIONS = {
    "depthwise": nn.Conv2d(4, 4, 3, groups=4, stride=2, padding=1),
    "strided and dilated": nn.Conv2d(4, 6, (3, 2), stride=(2, 1), dilation=(1, 2), padding=(1, 0)),
    "same, reflected": nn.Conv2d(4, 6, 3, padding="same", padding_mode="reflect"),
    "one-dimensional": nn.Conv1d(4, 6, 5, stride=2, padding=1, groups=2),
}


@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_convolutions_of_all_kinds_keep_most_of_their_output(name):
    torch.manual_seed(0)
    layer = CONVOLUTIONS[name]
    shape = (40, 4, 12) if isinstance(layer, nn.Conv1d) else (40, 4, 9, 9)
    inputs = torch.rand(shape) + torch.rand(shape[:2])[(...,) + (None,) * (len(shape) - 2)]
    made, report = binarize(nn.Sequential(layer), list(inputs.split(10)), bits=3, layers=["0"], bias=True)
    assert isinstance(made[0], BinaryConv1d if isinstance(layer, nn.Conv1d) else BinaryConv2d)
    with torch.no_grad():
        wanted, found = (m(inputs).transpose(0, 1).flatten(1) for m in (layer, made))
    lost = (found - wanted).var(1).sum() / wanted.var(1).sum()
    assert lost < 0.05
    assert report.rows[0].search == pytest.approx(float(lost), rel=0.02)


def test_a_bag_of_dictionaries_calibrates_without_its_padding():
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(6, 4)

        def forward(self, states, attention_mask):
            return self.layer(states) * attention_mask[..., None]

    torch.manual_seed(0)
    model, states = Model(), torch.randn(10, 8, 6)
    mask = torch.arange(8) < torch.randint(2, 9, (10, 1))
    spoiled = torch.where(mask[..., None], states, 100 * torch.randn(10, 8, 6))
    clean = binarize(model, [{"states": states, "attention_mask": mask}], layers=["layer"])
    padded = binarize(model, [{"states": spoiled, "attention_mask": mask}], layers=["layer"])
    assert torch.equal(clean.model.layer.weight, padded.model.layer.weight)
    without = binarize(model, [{"states": spoiled, "attention_mask": mask}], layers=["layer"], rows=lambda _: None)
    assert not torch.equal(clean.model.layer.weight, without.model.layer.weight)


def test_transformers_are_binarised_with_their_attention():
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(16, 4, 32, batch_first=True, norm_first=True)
    model = nn.Sequential(nn.Linear(8, 16), nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)).eval()
    inputs = torch.randn(60, 5, 8)
    made, report = binarize(model, list(inputs.split(20)), bits=4, rounds=4, layers=lambda name, _: name != "0")
    names = [row.name for row in report.rows]
    assert len(names) == 12
    assert names[:6] == [f"1.layers.0.{part}" for part in _PARTS]
    assert type(model[1].layers[0].self_attn) is nn.MultiheadAttention
    with torch.no_grad():
        error = (made(inputs) - model(inputs)).square().mean() / model(inputs).var()
    assert error < 0.05


_PARTS = [*(f"self_attn.{part}" for part in ("query", "key", "value", "output")), "linear1", "linear2"]


def test_attention_none_of_whose_projections_was_chosen_stays_torchs_own():
    torch.manual_seed(0)
    model = nn.TransformerEncoderLayer(16, 4, 32, batch_first=True).eval()
    before = model.activation_relu_or_gelu
    made, _ = binarize(model, [torch.randn(60, 5, 16)], layers=["linear1"])
    assert type(made.self_attn) is nn.MultiheadAttention
    assert isinstance(made.linear1, BinaryLinear)
    assert model.activation_relu_or_gelu == before
    failed = nn.TransformerEncoderLayer(16, 4, 32, batch_first=True).eval()
    with pytest.raises(ValueError, match="NaN"):
        binarize(failed, [torch.full((6, 5, 16), torch.nan)], layers=["linear1"], copy=False)
    assert type(failed.self_attn) is nn.MultiheadAttention
    assert failed.activation_relu_or_gelu == before
    assert not any(isinstance(module, BinaryLayer | ProjectedAttention) for module in failed.modules())


def _share(found, wanted):
    return float((found - wanted).square().mean() / wanted.var())


def test_a_gpt2_of_transformers_is_binarised_end_to_end():
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    ends = {"bos_token_id": 0, "eos_token_id": 0}
    config = transformers.GPT2Config(n_layer=2, n_embd=32, n_head=2, vocab_size=50, n_positions=16, **ends)
    model = transformers.GPT2LMHeadModel(config).eval()
    batches = [
        {"input_ids": torch.randint(50, (20, 12)), "attention_mask": torch.ones(20, 12).long()} for _ in range(3)
    ]
    chosen = {name for name, layer in model.named_modules() if type(layer).__name__ == "Conv1D"}
    made, report = binarize(model, batches, bits=3, rounds=4, layers=chosen)
    assert {row.name for row in report.rows} == chosen and len(chosen) == 8
    assert all(isinstance(made.get_submodule(name), BinaryLinear) for name in chosen)
    with torch.no_grad():
        assert _share(made(**batches[0])[0], model(**batches[0])[0]) < 0.01
    assert made.lm_head.weight is made.transformer.wte.weight  # it stays
    assert made.generate(batches[0]["input_ids"][:1], max_new_tokens=3, do_sample=False).shape == (1, 15)


def test_a_network_of_torch_geometric_is_binarised_end_to_end():
    geometric = pytest.importorskip("torch_geometric.nn")

    class Network(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second = geometric.GCNConv(12, 16), geometric.GATConv(16, 8, heads=2)
            self.third = geometric.SAGEConv(16, 4)

        def forward(self, x, edges):
            return self.third(self.second(self.first(x, edges).relu(), edges).relu(), edges)

    torch.manual_seed(0)
    model, x, edges = Network().eval(), torch.randn(60, 12), torch.randint(60, (2, 200))
    made, report = binarize(model, [(x, edges)], bits=3, rounds=4, first=True, last=True)
    assert [row.name for row in report.rows] == ["first.lin", "second.lin", "third.lin_l", "third.lin_r"]
    with torch.no_grad():
        assert _share(made(x, edges), model(x, edges)) < 0.05


class Masked(nn.Module):
    """An encoder that may leave out padding by nested tensors, which know nothing of binary layers."""

    def __init__(self):
        super().__init__()
        layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2)

    def forward(self, x, padding):
        return self.encoder(x, src_key_padding_mask=padding)


def test_an_encoder_with_padding_goes_through_its_binary_layers():
    torch.manual_seed(0)
    model, x = Masked().eval(), torch.randn(6, 5, 8)
    padding = torch.arange(5) >= torch.tensor([5, 4, 3, 5, 2, 1])[:, None]
    binary, report = binarize(model, [(x, padding)], first=True, last=True, rounds=0)
    assert len(report.rows) == 2 * 6
    torch.testing.assert_close(binary(x, padding)[-1, :1], binary(x[-1:, :1], None)[0])


def _mixture(kind, **options):
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    sizes = {"vocab_size": 50, "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2, "head_dim": 8}
    heads = {"num_attention_heads": 2, "num_key_value_heads": 2}
    experts = {"num_local_experts": 6, "num_experts": 6, "num_experts_per_tok": 2, "moe_intermediate_size": 24}
    config = getattr(transformers, f"{kind}Config")(**sizes, **heads, **experts, **options)
    model = getattr(transformers, f"{kind}ForCausalLM")(config).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "expert" in name:
                parameter.normal_(std=0.3)
    return model


KINDS = ("Mixtral", "Qwen3Moe", "GptOss", "NemotronH")  # plain, other names, transposed with biases, without gates


@pytest.mark.parametrize("kind", KINDS)
def test_experts_stored_as_one_tensor_compute_the_same_as_layers(kind):
    model = _mixture(kind, **({"hybrid_override_pattern": "E*"} if kind == "NemotronH" else {}))
    experts = next(module for module in model.modules() if ExpertLayers.fits(module))
    x, weights = torch.randn(20, experts.down_proj.shape[1 if kind != "GptOss" else 2]), torch.rand(20, 2)
    chosen = torch.stack([torch.randperm(5)[:2] for _ in range(20)])  # the sixth expert never
    layers = ExpertLayers(experts)
    assert (experts(x, chosen, weights) - layers(x, chosen, weights)).abs().max() < 1e-5
    assert layers(x, chosen, weights).std() > 0.01
    assert sum(p.numel() for p in layers.parameters()) == sum(p.numel() for p in experts.parameters())


def test_a_mixture_of_transformers_is_binarised_with_its_experts(tmp_path):
    model = _mixture("Mixtral")
    batches = [{"input_ids": torch.randint(50, (1, 2))} for _ in range(60)]  # each for some of the experts alone
    with pytest.warns(UserWarning, match="MixtralTopKRouter holds weight itself"):
        made, report = binarize(model, batches, bits=3, rounds=4)
    names = [row.name for row in report.rows if "experts" in row.name]
    assert names == [f"model.layers.{i}.mlp.experts.{k}.{p}" for i in (0, 1) for k in range(6) for p in ("up", "down")]
    with torch.no_grad():
        found, wanted = (torch.cat([one(**batch)[0] for batch in batches]) for one in (made, model))
    assert _share(found, wanted) < 0.2  # some tokens now go to other experts
    assert isinstance(model.model.layers[0].mlp.experts.gate_up_proj, nn.Parameter)
    importlib.import_module("qpsbgd.nn.huggingface")
    made.save_pretrained(tmp_path)
    again = type(model).from_pretrained(tmp_path).eval()
    assert torch.equal(again(**batches[0])[0], made(**batches[0])[0])
    with pytest.warns(UserWarning, match="MixtralTopKRouter"):
        converted = convert(model)
    assert isinstance(converted.get_submodule(names[0]), BinaryLinear)


def test_experts_are_fitted_to_the_tokens_that_the_binary_network_gives_them():
    model = _mixture("Mixtral")
    mask = torch.arange(10) < torch.randint(4, 11, (12, 1))
    batches = [{"input_ids": torch.randint(50, (12, 10)), "attention_mask": mask.long()} for _ in range(4)]
    lost = {}
    for targets in ("own", "float"):
        with pytest.warns(UserWarning, match="MixtralTopKRouter"):
            made, _ = binarize(model, batches, rounds=4, targets=targets)
        with torch.no_grad():
            pairs = [(made(**batch)[0][mask], model(**batch)[0][mask]) for batch in batches]
        lost[targets] = sum(_share(*pair) for pair in pairs)
    assert lost["float"] < lost["own"]


def test_the_target_of_a_token_that_an_expert_has_in_both_networks_is_the_float_networks_output():
    model = _mixture("Mixtral")
    batch = {"input_ids": torch.randint(50, (12, 10))}
    model.model.layers[0].mlp.experts = ExpertLayers(model.model.layers[0].mlp.experts)
    name = "model.layers.0.mlp.experts.1.up"
    layer, passes = model.get_submodule(name), Passes(model, [batch])
    passes.calls()
    with passes.watching(), torch.no_grad():
        there = passes.layer_call(layer, 0)
        away = there._replace(x=torch.randn_like(there.x))  # of a network that gives the expert the same tokens
        wanted = passes.targets(name, 0, away)
        torch.testing.assert_close(wanted, F.linear(there.x, layer.weight))
        fewer = there.tokens.clone()
        fewer[there.tokens.nonzero()[0]] = False  # and of one that gives it another first token
        fewer[(~there.tokens).nonzero()[0]] = True
        wanted = passes.targets(name, 0, away._replace(tokens=fewer))
        both = there.tokens[fewer]
        expected = F.linear(away.x, layer.weight)
        expected[both] = F.linear(there.x[fewer[there.tokens]], layer.weight)
        torch.testing.assert_close(wanted, expected)


class Routed(nn.Module):
    """A mixture that a user wrote, one expert per row."""

    def __init__(self):
        super().__init__()
        self.body, self.router = nn.Linear(8, 8), nn.Linear(8, 3)
        self.experts = nn.ModuleList(nn.Linear(8, 8) for _ in range(3))

    def forward(self, x):
        x = self.body(x).tanh()
        expert, out = self.router(x).argmax(-1), torch.zeros_like(x)
        for number, layer in enumerate(self.experts):
            if (rows := expert == number).any():
                out[rows] = layer(x[rows])
        return out


def test_layers_given_other_rows_in_the_binary_network_keep_their_real_outputs_as_targets():
    torch.manual_seed(0)
    model, batches = Routed(), [torch.randn(40, 8) for _ in range(4)]
    made, report = binarize(model, batches, first=True, last=True, rounds=2)
    assert len(report.rows) == 5
    assert all(row.lost < 0.5 for row in report.rows)
    assert isinstance(made.experts[2], BinaryLinear)


class Capacity(nn.Module):
    """Experts in a list that choose their tokens, as many in every network; selected and put back in a common way."""

    def __init__(self, way):
        super().__init__()
        self.way, self.body, self.router = way, nn.Linear(8, 8), nn.Linear(8, 3)
        self.experts = nn.ModuleList(nn.Linear(8, 8) for _ in range(3))
        self.head = nn.Linear(8, 8)

    def forward(self, x):
        x = self.body(x).tanh()
        gates, tokens = self.router(x).softmax(-1).topk(len(x) // 3, dim=0)
        out, matrix = torch.zeros_like(x), nn.functional.one_hot(tokens, len(x)).float()
        given = torch.einsum("cet,tn->ecn", matrix, x)
        for number, expert in enumerate(self.experts):
            chosen, gate = tokens[:, number], gates[:, number, None]
            if self.way == "index":
                out[chosen] += gate * expert(x[chosen])
            elif self.way == "gather":
                out = out.index_add(0, chosen, gate * expert(x.gather(0, chosen[:, None].expand(-1, 8))))
            else:
                out = out + matrix[:, number].T @ (gate * expert(given[number]))
        return self.head(x + out)


@pytest.mark.parametrize("way", ["index", "gather", "einsum"])
def test_layers_given_as_many_but_other_rows_in_the_binary_network_keep_their_real_outputs_as_targets(way):
    torch.manual_seed(0)
    model, batches = Capacity(way), [torch.randn(60, 8) for _ in range(20)]
    options, lost = {"first": True, "last": True, "bits": 2}, {}
    for targets in ("own", "float"):
        made, report = binarize(model, batches, targets=targets, **options)
        with torch.no_grad():
            lost[targets] = sum(_share(made(x), model(x)) for x in batches)
    experts = [row.lost for row in report.rows if "experts" in row.name]
    assert len(experts) == 3 and max(experts) < 0.04
    assert lost["float"] < lost["own"]


def test_experts_without_a_token_stay_real_valued_and_are_named():
    model = _mixture("Mixtral")
    with pytest.warns(UserWarning, match="MixtralTopKRouter"):
        _, report = binarize(model, [{"input_ids": torch.randint(50, (1, 1))}], rounds=0)
    kept = [name for name, why in report.kept.items() if why == "no calibration batch has tokens for this expert"]
    assert len(kept) == 2 * 4 * 2 and len(report.rows) == 2 * (4 + 2 * 2)
