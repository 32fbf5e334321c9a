"""Distillation of a float network into its binarised form, on its outputs and those of inner modules."""

import itertools
from collections.abc import Callable, Collection, Iterable, Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils._pytree import tree_leaves

from qpsbgd.binarization.passes import arguments, model_output
from qpsbgd.nn import BinaryLayer
from qpsbgd.nn.contexts import evaluation_mode, forward_hooks
from qpsbgd.optim import QPSBGD

ONE_BIT_RATE, RATE, REAL_RATE = 0.003, 0.001, 1e-3
"""Steps of latent weights of one bit and of several, in units of their initial range, and AdamW's rate of everything
else; chosen by binarize.py and language_models.py in reproduction/benchmarks/training."""
SIMILARITIES = 5.0  # weight of the batch's similarities in `embedding_loss`

Loss = Callable[[Any, Any], Tensor]


def distill(
    student: nn.Module,
    teacher: nn.Module,
    batches: Iterable[Any],
    *,
    steps: int = 1000,
    loss: Loss | None = None,
    layers: Collection[str] = (),
    lr: float | None = None,
    optimizer: Optimizer | None = None,
    progress: Callable[[int, float], None] | None = None,
) -> list[float]:
    """Train a binarised model towards the float model's outputs, without labels; returns the loss of every step.

    `QPSBGD` trains the latent weights, AdamW scales, biases and norms, both with a cosine to zero.
    Parameters without `requires_grad` are not trained. Dropout and batch norm work as in evaluation. The student is
    changed in place and keeps its mode.

    Args:
        student: The model that `binarize` returned.
        teacher: The float model, on the same device.
        batches: Inputs of both, as for `binarize`; read repeatedly until all steps are done, so that a
            `DataLoader` may draw crops and flips anew. Those of an iterator are kept and repeated.
        steps: Steps to make.
        loss: A function of the outputs of student and teacher; by default their squared difference as a share of the
            teacher's variance, the mean over the tensors of a tuple or dictionary. For embeddings use `embedding_loss`,
            for language models and other classifiers `logit_loss`.
        layers: Names of modules in both models, such as the blocks of a transformer, whose outputs should agree too,
            with equal weight. With one bit per weight, most networks need this.
        lr: Step size of the latent weights, in units of each layer's initial range; None takes 0.003 if all layers
            have one bit, and 0.001 otherwise.
        optimizer: Another optimiser of the student, such as `BinaryConnect`; lr is then not used.
        progress: Called with the number of steps made and the loss.

    Raises:
        ValueError: There are no batches, no binary layers, or no such modules.
    """
    inner = [(_module(student, name, "student"), _module(teacher, name, "teacher")) for name in layers]
    binary = [module for module in student.modules() if isinstance(module, BinaryLayer)]
    if not binary:
        raise ValueError("the student must have binary layers: binarize the model first")
    if optimizer is None:
        if lr is None:
            lr = ONE_BIT_RATE if all(layer.bits == 1 for layer in binary) else RATE
        real = {"lr": REAL_RATE, "weight_decay": 0.0}
        optimizer = QPSBGD(student, lr, relative=True, clip="range", steps=steps, real=real)
    compare = relative_error if loss is None else loss
    losses: list[Tensor] = []
    outputs: dict[nn.Module, Any] = {}

    def keep(module: nn.Module, _: Any, output: Any) -> None:
        outputs[module] = output

    with evaluation_mode(student, teacher), forward_hooks(itertools.chain(*inner), keep):
        for layer in binary:
            layer.train()  # so that it records
        for given in itertools.islice(_repeated(batches), steps):
            batch = arguments(teacher, given)
            with torch.no_grad():
                wanted = model_output(teacher, batch)
            optimizer.zero_grad()
            total = compare(model_output(student, batch), wanted)
            for ours, theirs in inner:
                total = total + relative_error(outputs[ours], outputs[theirs]) / len(inner)
            total.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            losses.append(total.detach())
            if progress is not None:
                progress(len(losses), float(losses[-1]))
    if len(losses) < steps:
        raise ValueError(
            f"distill needs batches of inputs for {steps} steps, got {len(losses)}; "
            "give a list, or a loader that can be read again"
        )
    return torch.stack(losses).tolist() if losses else []


def relative_error(outputs: Any, wanted: Any) -> Tensor:
    """‖outputs − wanted‖² as a share of ‖wanted − mean‖², the mean over all but the last dimension.

    Of one number per sample, (B,), the mean is over the samples; of several tensors, in a tuple or a dictionary, this
    is the mean over the tensors.
    """
    pairs = list(zip(_tensors(outputs), _tensors(wanted), strict=True))
    if not pairs:
        raise ValueError(f"relative_error needs outputs with real tensors, got {type(outputs).__name__}; give loss=…")
    return torch.stack([_share(*pair) for pair in pairs]).mean()


def _share(outputs: Tensor, wanted: Tensor) -> Tensor:
    rows, targets = (values.flatten(0, -2) if values.ndim > 1 else values for values in (outputs, wanted))
    return (rows - targets).square().sum() / (targets - targets.mean(0)).square().sum().clamp(min=1e-30)


def _tensors(outputs: Any) -> list[Tensor]:
    """What a model returns for its samples; not a loss."""
    leaves = [leaf for leaf in tree_leaves(outputs) if isinstance(leaf, Tensor)]
    return [leaf for leaf in leaves if leaf.is_floating_point() and leaf.ndim]


def embedding_loss(outputs: Tensor, wanted: Tensor) -> Tensor:
    """1 − the mean cosine of embeddings (B, d), plus five times the squared error of the similarities in the batch."""
    ours, theirs = F.normalize(outputs), F.normalize(wanted)
    similarities = (ours @ ours.T - theirs @ theirs.T).square().mean()
    return 1 - (ours * theirs).sum(-1).mean() + SIMILARITIES * similarities


def logit_loss(outputs: Any, wanted: Any) -> Tensor:
    """The mean KL divergence of the classes that logits (…, classes) give from those of the teacher's, in nats.

    Of a model's output that has `logits`, as in transformers, these count alone.
    """
    ours, theirs = (getattr(output, "logits", output).log_softmax(-1).flatten(0, -2) for output in (outputs, wanted))
    return F.kl_div(ours, theirs, reduction="batchmean", log_target=True)


def _repeated(batches: Iterable[Any]) -> Iterator[Any]:
    """Batches, from the beginning again whenever they end."""
    if isinstance(batches, Iterator):  # which can be read only once
        yield from itertools.cycle(batches)
    while True:
        batch = None
        for batch in batches:
            yield batch
        if batch is None:
            return


def _module(model: nn.Module, name: str, what: str) -> nn.Module:
    try:
        return model.get_submodule(name)
    except AttributeError as error:
        raise ValueError(f"the {what} has no module {name!r}; layers names modules of both models") from error
