"""What several ranks share in a step: sums over the rows of all of them, and the answers to each one's columns.

QUBOs are sums over rows, so ranks with rows of their own take the step of one process with all rows, up to rounding.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, is_dataclass
from typing import TYPE_CHECKING, Any, TypeVar

import torch
from torch import Tensor

from qpsbgd.nn import BinaryLayer
from qpsbgd.nn.tape import LayerRecord
from qpsbgd.optim.ranks import Ranks, share
from qpsbgd.optim.step import LayerStep
from qpsbgd.qubo import QuboFamily, Solution, binary_map_sums

if TYPE_CHECKING:
    from qpsbgd.optim.qpsbgd import QPSBGD

Work = TypeVar("Work")
Solve = Callable[[list[QuboFamily], list[Tensor | None]], list[Solution]]


def agreed(ranks: Ranks, optimizer: QPSBGD, work: Callable[[], Work | None]) -> Work | None:
    """This rank's work, once all ranks have theirs and train the same; see `Ranks.agreed`."""
    layers = [
        optimizer._layers[p] for group in optimizer.param_groups for p in group["params"] if p in optimizer._layers
    ]

    def compared() -> dict[str, list[tuple[str, Tensor]]]:
        grads = [layer.weight.new_empty(0) if layer.weight.grad is None else layer.weight.grad for layer in layers]
        names = [str(layer) for layer in layers]
        weights = [layer.weight for layer in layers]
        return {"gradients": list(zip(names, grads, strict=True)), "weights": list(zip(names, weights, strict=True))}

    return ranks.agreed(work, _description(optimizer, layers), compared)


def _description(optimizer: QPSBGD, layers: Sequence[BinaryLayer]) -> list[str]:
    """What must be the same on all ranks."""
    options = [{name: value for name, value in g.items() if name != "params"} for g in optimizer.param_groups]
    lines = [f"the options {group}" for group in options]
    for number, layer in enumerate(layers):
        weight, state = layer.weight, optimizer.state.get(layer.weight, {})
        lines.append(
            f"layer {number} of shape {tuple(weight.shape)} in {weight.dtype}, {'in' if layer.training else 'not in'} "
            f"training, with{'out' if weight.grad is None else ''} a gradient, after {state.get('step', 0)} steps"
        )
    solver: Any = optimizer.solver
    plain = {field.name: getattr(solver, field.name) for field in fields(solver)} if is_dataclass(solver) else {}
    numbers = {name: value for name, value in plain.items() if isinstance(value, int | float | None)}
    return [*lines, f"the solver {type(solver).__name__} with {numbers}"]


def total_rows(counts: Mapping[BinaryLayer, int], ranks: Ranks) -> dict[BinaryLayer, int]:
    """Rows per layer of all ranks from those of this one."""
    if not counts:
        return {}
    (total,) = ranks.summed([torch.tensor(list(counts.values()), dtype=torch.int64)])
    return dict(zip(counts, total.tolist(), strict=True))


def no_rows(layer: BinaryLayer) -> Tensor:
    """Input rows (0, groups · n) of a layer that this rank did not use."""
    weight, width = layer.weight, getattr(layer, "groups", 1) * layer.weight[0].numel()
    return weight.new_empty(0, width, dtype=torch.promote_types(weight.dtype, torch.float32))


def completed(records: Mapping[BinaryLayer, LayerRecord | None], ranks: Ranks) -> dict[BinaryLayer, LayerRecord | None]:
    """The records, with empty ones for layers that only other ranks used; None for those that no rank used."""
    counts = {layer: 0 if record is None else len(record.inputs) for layer, record in records.items()}
    rows = total_rows(counts, ranks)
    found: dict[BinaryLayer, LayerRecord | None] = {}
    for layer, record in records.items():
        if record is None and rows[layer]:
            inputs = no_rows(layer)
            record = LayerRecord(inputs, inputs.new_empty(0, len(layer.weight)))
        found[layer] = record if rows[layer] else None
    return found


def shared_families(parts: Sequence[LayerStep], ranks: Ranks) -> list[QuboFamily]:
    """The families of the rows of all ranks.

    Raises:
        ValueError: A rank's rows are not finite, or too large or small; on all ranks alike.
    """
    own = [binary_map_sums.measured(*_rows(part), scale=part.options.scale) for part in parts]
    gathered = ranks.gathered(torch.cat([numbers.cpu() for numbers in own]))
    measures = gathered.split_with_sizes([len(numbers) for numbers in own], 1)
    for part, found in zip(parts, measures, strict=True):
        if faulty := [rank for rank, fault in enumerate(found[:, 0].tolist()) if fault]:
            fault = binary_map_sums.FAULTS[int(found[faulty[0], 0])]
            raise ValueError(f"{part.layer} on rank {', '.join(map(str, faulty))}: {fault}")
    sums = [
        binary_map_sums.sums(
            *_rows(part), binary_map_sums.joined(found), gain=part.layer.gain, scale=part.options.scale
        )
        for part, found in zip(parts, measures, strict=True)
    ]
    totals = iter(ranks.summed([tensor for three in sums for tensor in three]))
    return [_family(part, [next(totals) for _ in range(3)]) for part in parts]


def _family(part: LayerStep, total: Sequence[Tensor]) -> QuboFamily:
    try:
        return binary_map_sums.family(total, scale=part.options.scale)
    except ValueError as error:
        raise ValueError(f"{part.layer}: {error}") from error


def _rows(part: LayerStep) -> tuple[Tensor, Tensor]:
    return part.record.inputs, part.record.output_grads


def shared_solutions(
    solve: Solve, families: Sequence[QuboFamily], starts: Sequence[Tensor | None], ranks: Ranks, *, alone: bool
) -> list[Solution]:
    """The answers to all columns, of which each rank finds its share.

    Args:
        solve: Answers families, with the spins to begin with.
        families: Of all layers and blocks, the same on all ranks.
        starts: The spins to begin with, per family.
        ranks: All of them.
        alone: Whether rank 0 answers all columns, for solvers that keep a state or are paid for.

    Raises:
        RuntimeError: The solver of another rank failed.
    """
    shares = [
        [share(f.num_columns, rank=rank, size=1 if alone else ranks.size) for f in families]
        for rank in range(ranks.size)
    ]
    mine = [(index, columns) for index, columns in enumerate(shares[ranks.rank]) if columns.start < columns.stop]
    answers: list[Solution] = []
    error: BaseException | None = None
    try:
        if mine:
            own = [_columns(families[index], columns) for index, columns in mine]
            begin = [None if (start := starts[index]) is None else start[:, columns] for index, columns in mine]
            answers = solve(own, begin)
    except BaseException as caught:
        error = caught
    message = _packed(answers) if error is None else torch.empty(0, dtype=torch.uint8)
    found = ranks.gathered(
        _padded(message, failed=error is not None, length=1 + max(_length(families, s) for s in shares))
    )
    if failed := [rank for rank, code in enumerate(found[:, 0].tolist()) if code]:
        messages = ranks.told(None if error is None else f"{type(error).__name__}: {error}")
        if error is not None:
            raise error
        raise RuntimeError(
            f"the solver of rank {failed[0]} failed, so that no rank takes this step: {messages[failed[0]]}"
        )
    pieces = [_unpacked(row[1:], families, own) for row, own in zip(found, shares, strict=True)]
    stats = dict(answers[0].stats) if answers else {}
    solutions = []
    for found_by_rank in zip(*pieces, strict=True):
        spins, energies, proven = (torch.cat(parts, -1) for parts in zip(*found_by_rank, strict=True))
        solutions.append(Solution(spins, energies, proven, dict(stats)))
    return solutions


def _columns(family: QuboFamily, columns: slice) -> QuboFamily:
    return QuboFamily.trusted(family.quadratic, family.linear[:, columns].contiguous(), family.offset[columns])


def _sizes(families: Sequence[QuboFamily], columns: Sequence[slice]) -> tuple[list[int], int, int]:
    """Of the answers to these columns: columns per family, bits (one per spin and proof), and their bytes."""
    counts = [own.stop - own.start for own in columns]
    bits = sum((len(family.linear) + 1) * count for family, count in zip(families, counts, strict=True))
    return counts, bits, (bits + 7) // 8


def _length(families: Sequence[QuboFamily], columns: Sequence[slice]) -> int:
    counts, _, size = _sizes(families, columns)
    return size + 8 * sum(counts)


def _packed(answers: Sequence[Solution]) -> Tensor:
    """Spins and proofs as bits, then the energies in double precision, as bytes."""
    if not answers:
        return torch.empty(0, dtype=torch.uint8)
    flags = [part.flatten().cpu() for one in answers for part in (one.spins > 0, one.proven_optimal)]
    energies = torch.cat([one.energies.double().cpu() for one in answers])
    return torch.cat([_as_bytes(torch.cat(flags)), energies.view(torch.uint8)])


def _unpacked(
    message: Tensor, families: Sequence[QuboFamily], columns: Sequence[slice]
) -> list[tuple[Tensor, Tensor, Tensor]]:
    """Spins, energies and proofs per family from a rank's message."""
    counts, bits, size = _sizes(families, columns)
    lengths = [n for family, count in zip(families, counts, strict=True) for n in (family.num_spins * count, count)]
    flags = iter(_as_bits(message[:size], bits).split_with_sizes(lengths))
    energies = message[size : size + 8 * sum(counts)].clone().view(torch.float64).split_with_sizes(counts)
    found = []
    for family, count, energy in zip(families, counts, energies, strict=True):
        spins = next(flags).reshape(family.num_spins, count).to(family.linear) * 2 - 1
        proven = next(flags).to(family.linear.device)
        found.append((spins, energy.to(family.linear), proven))
    return found


def _as_bytes(flags: Tensor) -> Tensor:
    padded = torch.nn.functional.pad(flags.to(torch.uint8), (0, -len(flags) % 8)).reshape(-1, 8)
    return (padded << torch.arange(8, dtype=torch.uint8)).sum(1, dtype=torch.uint8)


def _as_bits(message: Tensor, count: int) -> Tensor:
    bits = (message[:, None] >> torch.arange(8, dtype=torch.uint8)) & 1
    return bits.flatten()[:count].bool()


def _padded(message: Tensor, *, failed: bool, length: int) -> Tensor:
    first = torch.tensor([failed], dtype=torch.uint8)
    return torch.nn.functional.pad(torch.cat([first, message]), (0, length - 1 - len(message)))
