"""The operations of a network in order, with what goes in and what comes out of each."""

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import qpsbgd_runtime.image_operations as images
import qpsbgd_runtime.operations as ops
import qpsbgd_runtime.tensor_operations as tensors
import qpsbgd_runtime.unit_operations as units
from qpsbgd_runtime.image_operations import MOST_TAPS, Convolution, MaxPool
from qpsbgd_runtime.operations import Operation, Shape
from qpsbgd_runtime.unit_operations import Quantize, Scale

_MOST_NUMBERS = 2**27  # that one sample may need at once, 512 MB: so that a crafted file cannot ask for terabytes

_OF_SEVERAL_DIMENSIONS = (
    *(tensors.Transpose, tensors.Product, tensors.Mean, tensors.Slice, tensors.Take, tensors.Embedding),
    tensors.Concatenate,
)
KINDS: dict[str, type[Operation]] = {
    name: kind
    for module in (ops, images, tensors, units)
    for name, kind in vars(module).items()
    if isinstance(kind, type) and issubclass(kind, Operation) and not kind.__subclasses__()
}
"""All operations, by name: the classes of these modules from which no other one is derived."""


class Stage(NamedTuple):
    """An operation with the numbers and types of the values that go in, and the type of what comes out."""

    operation: Operation
    sources: tuple[int, ...]
    before: tuple[ops.Value, ...]
    after: ops.Value


def walk(operations: Sequence[Operation], shape: Shape) -> list[Stage]:
    """Every operation with what goes in and what comes out, for samples of a shape."""
    values, stages = [ops.Value("real", shape)], []
    last = last_uses(operations)
    numbers, taps = math.prod(shape), 0
    for number, operation in enumerate(operations, 1):
        sources = sources_of(operation, number)
        before = tuple(values[source] for source in sources)
        after = operation.result(*before)
        values.append(after)
        stages.append(Stage(operation, sources, before, after))
        window = operation.window_for(before[0].shape)
        taps += 0 if window is None else window.count_taps(before[0].shape[1:])
        if taps > MOST_TAPS:
            raise ValueError(f"{operation} and what is before it must have windows of at most {MOST_TAPS} pixels")
        numbers += math.prod(after.shape)
        if numbers > _MOST_NUMBERS:
            raise ValueError(f"{operation} would need memory for {numbers} numbers per sample, at most {_MOST_NUMBERS}")
        numbers -= sum(math.prod(values[source].shape) for source in {*sources, number} if last[source] <= number)
    return stages


def sources_of(operation: Operation, number: int) -> tuple[int, ...]:
    """The numbers of the values that the operation with this number takes."""
    sources = operation.inputs or (number - 1,)
    if not all(0 <= source < number for source in sources):
        raise ValueError(f"{operation} takes the values {sources}, but only 0 to {number - 1} come before it")
    return sources


def needed(operations: Sequence[Operation], last: int) -> tuple[Operation, ...]:
    """The operations that the value with the number `last` needs, numbered anew."""
    sources, numbers = {last} - {0}, {0: 0}
    for number in range(last, 0, -1):
        if number in sources:
            sources |= {*sources_of(operations[number - 1], number)} - {0}
    kept = []
    for place, number in enumerate(sorted(sources), 1):
        numbers[number] = place
        inputs = tuple(numbers[source] for source in sources_of(operations[number - 1], number))
        kept.append(replace(operations[number - 1], inputs=() if inputs == (place - 1,) else inputs))
    return tuple(kept)


def last_uses(operations: Sequence[Operation]) -> list[int]:
    """For every value the number of the last operation that takes it; the output is taken after all of them."""
    last = [0] * (len(operations) + 1)
    for number, operation in enumerate(operations, 1):
        for source in sources_of(operation, number):
            last[source] = number
    last[-1] = len(operations) + 1
    return last


def natural_shape(operations: Sequence[Operation]) -> Shape | None:
    """The shape of a sample where the operations themselves tell it: if a dense layer comes first."""
    if any(isinstance(one, _OF_SEVERAL_DIMENSIONS) for one in operations):
        return None  # samples may have several dimensions
    for number, operation in enumerate(operations, 1):
        if sources_of(operation, number) != (number - 1,) and number > 1:
            return None
        if isinstance(operation, ops.Dense):
            return (operation.weights.shape[1],)
        if isinstance(operation, Scale):
            count = max(len(operation.factor), len(operation.offset))
            if count > 1:
                return None if any(isinstance(other, Convolution | MaxPool) for other in operations) else (count,)
        elif isinstance(operation, ops.Reshape) and operation.shape != (-1,):
            return None if -1 in operation.shape else (math.prod(operation.shape),)
        elif not isinstance(
            operation, ops.Sign | Quantize | ops.Clip | tensors.Activation | tensors.Normalize | ops.Reshape
        ):
            return None
    return None
