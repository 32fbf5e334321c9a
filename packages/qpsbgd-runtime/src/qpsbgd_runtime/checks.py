"""Whether operations that come from a file are as `pack` makes them."""

from qpsbgd_runtime.operations import Operation, Shape
from qpsbgd_runtime.rules import are_whole
from qpsbgd_runtime.stages import natural_shape, sources_of, walk


def check(operations: tuple[Operation, ...], input_shape: Shape | None = None) -> None:
    """Raise ValueError, naming the operation, unless all are as `pack` makes them and fit one another."""
    for place, operation in enumerate(operations):
        if not isinstance(operation, Operation) or not isinstance(operation.name, str):
            raise ValueError(f"operation {place} must be one with a name, got {type(operation).__name__}")
        for right, wanted in operation.rules():
            if not right:
                raise ValueError(f"{operation} must have {wanted}")
        sources_of(operation, place + 1)
    if input_shape is not None and not (input_shape and are_whole(input_shape, least=1)):
        raise ValueError("input_shape must be the positive sizes of one sample")
    shape = natural_shape(operations) if input_shape is None else input_shape
    if shape is not None:
        walk(operations, shape)
