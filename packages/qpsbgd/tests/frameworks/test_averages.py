import torch
from torch import nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn, update_bn

from qpsbgd import QPSBGD
from qpsbgd.nn import BinaryLinear

DECAY = 0.9


def test_an_average_has_the_signs_of_the_mean_latent_weights_and_norms_of_its_own():
    torch.manual_seed(0)
    model = nn.Sequential(BinaryLinear(8, 32), nn.BatchNorm1d(32), nn.Hardtanh(), BinaryLinear(32, 2, bias=True))
    inputs = torch.randn(512, 8)
    targets = (inputs[:, :4].sum(1) > inputs[:, 4:].sum(1)).long()
    averaged = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(DECAY))
    optimizer, mean = QPSBGD(model, real=True), None
    for rows in torch.randint(0, 512, (60, 64)):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(inputs[rows]), targets[rows]).backward()
        optimizer.step()
        averaged.update_parameters(model)
        latent = model[0].weight.detach().clone()
        mean = latent if mean is None else DECAY * mean + (1 - DECAY) * latent
    layer = averaged.module[0]
    torch.testing.assert_close(layer.weight.detach(), mean)
    assert torch.equal(layer.binary_weight, torch.where(mean >= 0, 1.0, -1.0))
    assert layer.tape is None and not torch.equal(layer.binary_weight, model[0].binary_weight)
    update_bn(inputs.split(128), averaged)
    norm, outputs = averaged.module[1], layer(inputs)
    torch.testing.assert_close(norm.running_mean, outputs.mean(0).detach(), rtol=1e-4, atol=1e-5)
    assert (averaged.eval()(inputs).argmax(1) == targets).float().mean() > 0.9
