import copy
import warnings

import pytest
import torch
from lazy import Lazy
from small_networks import OPTIMIZERS, network_with_norm
from torch import nn

import qpsbgd
from qpsbgd.nn import BinaryLayer, BinaryLinear, convert

transformers, huggingface = Lazy("transformers"), Lazy("qpsbgd.nn.huggingface")


class Classifier(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = network_with_norm()

    def forward(self, inputs, labels=None):
        outputs = self.layers(inputs)
        return {"loss": nn.functional.cross_entropy(outputs, labels), "logits": outputs}


@pytest.fixture
def rows():
    inputs = torch.randn(256, 8)
    return [{"inputs": x, "labels": int(x[:4].sum() > 0)} for x in inputs]


def trainer(model, rows, folder, *, optimizer=OPTIMIZERS["ridge"], **options):
    arguments = {"num_train_epochs": 2, "per_device_train_batch_size": 32, "report_to": [], "use_cpu": True}
    quiet = {"logging_strategy": "no", "disable_tqdm": True, "save_strategy": "no", "dataloader_pin_memory": False}
    settings = transformers.TrainingArguments(output_dir=str(folder), **arguments | quiet | options)
    return transformers.Trainer(
        model, settings, train_dataset=rows, optimizers=(optimizer(model, real={"lr": 1e-2}), None)
    )


BF16 = {"bf16": True, "gradient_accumulation_steps": 2}


@pytest.mark.parametrize(
    ("name", "options"), [("ridge", {}), *((name, BF16) for name in ("spins", "QuboDescent", "ProxQuant"))]
)
def test_the_trainer_trains_everything(name, options, rows, tmp_path):
    model = Classifier()
    before = copy.deepcopy(model)
    trainer(
        model, rows, tmp_path, optimizer=OPTIMIZERS[name], **options
    ).train()  # clips gradients at norm 1 by default
    assert not any(map(torch.equal, before.parameters(), model.parameters()))


def test_a_resumed_run_equals_an_uninterrupted_one(rows, tmp_path):
    whole = Classifier()
    resumed = copy.deepcopy(whole)
    saving = {"save_strategy": "steps", "save_steps": 8}
    trainer(whole, rows, tmp_path, **saving).train()
    trainer(resumed, rows, tmp_path, **saving).train(resume_from_checkpoint=str(tmp_path / "checkpoint-8"))
    for one, other in zip(whole.parameters(), resumed.parameters(), strict=True):
        assert torch.equal(one, other)


def test_gpt2_is_converted_and_trained(tmp_path):
    config = transformers.GPT2Config(
        vocab_size=20, n_positions=16, n_embd=16, n_layer=1, n_head=2, bos_token_id=0, eos_token_id=0
    )
    with pytest.warns(UserWarning, match=r"real-valued: lm_head \(it shares its weight"):
        model = convert(transformers.GPT2LMHeadModel(config))
    assert sum(isinstance(module, BinaryLinear) for module in model.modules()) == 4
    before = copy.deepcopy(model)
    rows = [{"input_ids": row, "labels": row} for row in torch.randint(0, 20, (64, 16))]
    trainer(model, rows, tmp_path, num_train_epochs=1, per_device_train_batch_size=16).train()
    moved = [not torch.equal(old, new) for old, new in zip(before.parameters(), model.parameters(), strict=True)]
    assert all(moved)


def bert():
    sizes = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32}
    return transformers.BertConfig(vocab_size=30, **sizes, num_labels=3)


def gpt2():
    sizes = {"n_positions": 16, "n_embd": 16, "n_layer": 2, "n_head": 2}
    return transformers.GPT2Config(vocab_size=20, **sizes, bos_token_id=0, eos_token_id=0)


def converted_bert():
    return convert(transformers.BertForSequenceClassification(bert()).eval())


def two_bit_gpt2():
    return convert(transformers.GPT2LMHeadModel(gpt2()).eval(), bits=2, scale="learned", skip=["lm_head"])


def binarized_gpt2():
    model = transformers.GPT2LMHeadModel(gpt2()).eval()
    batches = [{"input_ids": torch.randint(0, 20, (8, 16))}]
    return qpsbgd.binarize(model, batches, rounds=1, layers=lambda name, _: "mlp" in name).model


@pytest.mark.parametrize("make", [converted_bert, two_bit_gpt2, binarized_gpt2])
def test_a_saved_model_comes_back_binary(make, tmp_path):
    model, tokens = make(), torch.randint(0, 20, (3, 16))
    model.save_pretrained(tmp_path)
    loaded = type(model).from_pretrained(tmp_path)
    assert torch.equal(loaded(tokens).logits, model(tokens).logits)
    assert repr(loaded) == repr(model)
    loaded.save_pretrained(tmp_path / "again")
    assert torch.equal(type(model).from_pretrained(tmp_path / "again")(tokens).logits, model(tokens).logits)


def sizes_and_scores(model, folder, tokens):
    model.save_pretrained(folder)
    file = folder / "model.safetensors"
    loaded = type(model).from_pretrained(folder)
    assert torch.equal(loaded(tokens).logits, model(tokens).logits)
    assert torch.equal(qpsbgd.load(file, type(model)(model.config).eval())(tokens).logits, model(tokens).logits)
    return loaded, file.stat().st_size


@pytest.mark.parametrize("tied", [True, False])
def test_a_binarised_model_is_saved_as_bits_unless_latent_weights_are_asked_for(tied, tmp_path):
    config = gpt2()
    config.tie_word_embeddings = tied
    whole = transformers.GPT2LMHeadModel(config).eval()
    batches, tokens = [{"input_ids": torch.randint(0, 20, (8, 16))}], torch.randint(0, 20, (3, 16))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a head that shares its weight stays real-valued
        model = qpsbgd.binarize(whole, batches, bits=2, rounds=1).model
    loaded, small = sizes_and_scores(model, tmp_path / "bits", tokens)
    _, again = sizes_and_scores(loaded, tmp_path / "again", tokens)
    assert again == small
    layer = "transformer.h.0.mlp.c_fc"
    saved, before = loaded.get_submodule(layer), model.get_submodule(layer)
    assert torch.equal(saved.binary_weight, before.binary_weight)
    model.config.quantization_config.latents = True
    other, large = sizes_and_scores(model, tmp_path / "latents", tokens)
    assert torch.equal(other.get_submodule(layer).weight, before.weight)
    binary = [module for module in model.modules() if isinstance(module, BinaryLayer)]
    assert large - small > 0.9 * (4 - 1 / 8) * sum(layer.weight.numel() for layer in binary)


def test_what_an_optimiser_trains_is_saved_with_latent_weights(tmp_path):
    model = binarized_gpt2()
    optimizer = qpsbgd.QPSBGD(model, real={"lr": 1e-3})
    model.save_pretrained(tmp_path)
    loaded = transformers.GPT2LMHeadModel.from_pretrained(tmp_path)
    layer = "transformer.h.0.mlp.c_fc"
    assert torch.equal(loaded.get_submodule(layer).weight, model.get_submodule(layer).weight)
    assert optimizer.param_groups


def test_a_base_model_loads_what_was_saved_with_a_head_and_the_other_way_round(tmp_path):
    model, tokens = converted_bert(), torch.randint(0, 20, (3, 16))
    model.save_pretrained(tmp_path / "whole")
    base = transformers.BertModel.from_pretrained(tmp_path / "whole")
    assert torch.equal(base(tokens).pooler_output, model.bert(tokens).pooler_output)
    base.save_pretrained(tmp_path / "base")
    loaded = transformers.BertForSequenceClassification.from_pretrained(tmp_path / "base")
    assert torch.equal(loaded.bert(tokens).pooler_output, base(tokens).pooler_output)
