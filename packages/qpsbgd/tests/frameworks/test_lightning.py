import copy

import pytest
import torch
from lazy import Lazy
from small_networks import OPTIMIZERS, network_with_norm
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

pytestmark = pytest.mark.filterwarnings("ignore:The number of training batches")

lightning, plugins = Lazy("lightning"), Lazy("lightning.pytorch.plugins")


def network(optimizer="ridge", by="model"):
    """A Lightning module with binary layers, trained by `optimizer`."""

    class Network(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.layers = network_with_norm()

        def training_step(self, batch, index):
            inputs, targets = batch
            return nn.functional.cross_entropy(self.layers(inputs), targets)

        def configure_optimizers(self):
            given = {"model": self, "parameters": self.parameters(), "named": self.named_parameters()}[by]
            made = OPTIMIZERS[optimizer](given, real={"lr": 1e-2})
            schedule = torch.optim.lr_scheduler.ExponentialLR(made, 0.9)
            return {"optimizer": made, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}

    return Network()


@pytest.fixture
def batches():
    torch.manual_seed(0)
    inputs = torch.randn(256, 8)
    return DataLoader(TensorDataset(inputs, (inputs[:, :4].sum(1) > 0).long()), batch_size=32)


def trained(model, batches, tmp_path, *, epochs, resume=None, **options):
    trainer = lightning.Trainer(
        max_epochs=epochs,
        accelerator="cpu",
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        enable_checkpointing=False,
        default_root_dir=tmp_path,
        **options,
    )
    trainer.fit(model, batches, ckpt_path=resume)
    return trainer


@pytest.mark.parametrize(
    ("optimizer", "by"),
    [("spins", "model"), ("BinaryConnect", "model"), ("ridge", "parameters"), ("QuboDescent", "named")],
)
def test_automatic_optimisation_trains_everything(optimizer, by, batches, tmp_path):
    model = network(optimizer, by)
    before = copy.deepcopy(model)
    trainer = trained(model, batches, tmp_path, epochs=2, gradient_clip_val=1.0)
    for (name, old), new in zip(before.named_parameters(), model.parameters(), strict=True):
        assert not torch.equal(old, new), name
    fractions = [group["lr"] / group["initial_lr"] for group in trainer.optimizers[0].param_groups]
    assert fractions == pytest.approx([0.9**16] * 2)


def half_precision():
    """float16 with a GradScaler, which Lightning itself offers on GPUs only."""
    return {"plugins": [plugins.MixedPrecision("16-mixed", "cpu", torch.amp.GradScaler("cpu", init_scale=2.0**10))]}


@pytest.mark.parametrize(
    ("optimizer", "options"),
    [("spins", lambda: {"precision": "bf16-mixed"}), ("ridge", half_precision), ("ProxQuant", half_precision)],
)
def test_mixed_precision_with_clipping_trains_everything(optimizer, options, batches, tmp_path):
    model = network(optimizer)
    before = copy.deepcopy(model)
    trained(model, batches, tmp_path, epochs=2, gradient_clip_val=0.5, **options())
    for (name, old), new in zip(before.named_parameters(), model.parameters(), strict=True):
        assert new.isfinite().all(), name
        assert not torch.equal(old, new), name


@pytest.mark.parametrize("optimizer", ["spins", "BinaryConnect"])
def test_a_resumed_run_equals_an_uninterrupted_one(optimizer, batches, tmp_path):
    torch.manual_seed(0)
    whole = network(optimizer)
    first, second = copy.deepcopy(whole), copy.deepcopy(whole)
    trained(whole, batches, tmp_path, epochs=2)
    trained(first, batches, tmp_path, epochs=1).save_checkpoint(tmp_path / "half.ckpt")
    trained(second, batches, tmp_path, epochs=2, resume=tmp_path / "half.ckpt")
    for one, other in zip(whole.parameters(), second.parameters(), strict=True):
        assert torch.equal(one, other)
