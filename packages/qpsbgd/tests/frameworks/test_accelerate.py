import pytest
import torch
from lazy import Lazy
from small_networks import OPTIMIZERS, network_with_norm
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from qpsbgd import QPSBGD

accelerate = Lazy("accelerate")


@pytest.fixture(autouse=True)
def fresh_state():
    """Accelerate keeps its settings for the whole process."""
    accelerate.state.AcceleratorState._reset_state(reset_partial_state=True)
    accelerate.state.GradientState._reset_state()


def network():
    torch.manual_seed(0)
    return network_with_norm()


def batches():
    inputs = torch.randn(256, 8, generator=torch.Generator().manual_seed(0))
    return DataLoader(TensorDataset(inputs, (inputs[:, :4].sum(1) > 0).long()), batch_size=32)


@pytest.mark.parametrize(
    ("name", "mixed_precision"), [("ridge", "no"), ("spins", "bf16"), ("QuboDescent", "bf16"), ("ProxQuant", "bf16")]
)
def test_a_prepared_model_learns(name, mixed_precision):
    accelerator = accelerate.Accelerator(cpu=True, mixed_precision=mixed_precision, gradient_accumulation_steps=2)
    model, data = network(), batches()
    optimizer = OPTIMIZERS[name](model.parameters(), real={"lr": 1e-2})
    schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.99)
    before = [p.detach().clone() for p in model.parameters()]
    model, optimizer, data, schedule = accelerator.prepare(model, optimizer, data, schedule)
    for _ in range(5):
        for inputs, targets in data:
            with accelerator.accumulate(model):
                loss = nn.functional.cross_entropy(model(inputs), targets)
                accelerator.backward(loss)
                accelerator.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
                schedule.step()
                optimizer.zero_grad()
    assert not any(torch.equal(old, new) for old, new in zip(before, model.parameters(), strict=True))
    inputs, targets = batches().dataset.tensors
    assert (model.eval()(inputs).argmax(1) == targets).float().mean() > 0.8


def test_a_saved_state_is_loaded(tmp_path):
    runs = []
    for _ in range(2):
        accelerator = accelerate.Accelerator(cpu=True)
        model = network()
        runs.append((accelerator, *accelerator.prepare(model, QPSBGD(model.parameters()))))

    def train(accelerator, model, optimizer):
        for inputs, targets in batches():
            optimizer.zero_grad()
            accelerator.backward(nn.functional.cross_entropy(model(inputs), targets))
            optimizer.step()

    train(*runs[0])
    runs[0][0].save_state(tmp_path)
    runs[1][0].load_state(tmp_path)
    for run in runs:
        train(*run)
    for one, other in zip(runs[0][1].parameters(), runs[1][1].parameters(), strict=True):
        assert torch.equal(one, other)
