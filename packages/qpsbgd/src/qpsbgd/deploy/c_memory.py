"""One array for all that a network keeps between its steps: values that are not needed together share memory."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Block:
    """Memory of a size in bytes, needed from one step to another, both included."""

    name: str
    size: int
    begin: int
    end: int


def arrange(
    blocks: Sequence[Block], distances: Mapping[tuple[str, str], int], align: int
) -> tuple[dict[str, int], int]:
    """Where blocks begin, by name, and the bytes of all together.

    Args:
        blocks: What is placed.
        distances: For (results, input), of which steps may write the first over the second, how many bytes the input
            must begin after the results.
        align: Every block begins at a multiple of it.
    """
    keys: tuple[Callable[[Block], tuple[int, ...]], ...] = (
        lambda block: (-block.size, block.begin),
        lambda block: (-block.begin, -block.size),
        lambda block: (block.begin, -block.size),
    )
    # What one step alone needs comes last: between an input and results that follow it, it would keep them apart.
    orders = [sorted(blocks, key=lambda block: (block.begin == block.end, *key(block))) for key in keys]
    orders += [sorted(blocks, key=key) for key in keys]
    arrangements = [_place_in_order(order, distances, align) for order in orders]
    return min(arrangements, key=lambda arrangement: arrangement[1])


def _place_in_order(
    blocks: Iterable[Block], distances: Mapping[tuple[str, str], int], align: int
) -> tuple[dict[str, int], int]:
    """Every block at the first place where it fits next to those before it."""
    places: dict[str, int] = {}
    known: list[Block] = []
    for block in blocks:
        rivals = [other for other in known if other.begin <= block.end and block.begin <= other.end]
        spans = [_forbidden(block, other, places[other.name], distances, align) for other in rivals]
        place = 0
        for begin, end in sorted(spans):
            if begin < place + 1 and place < end:
                place = end
        places[block.name] = place
        known.append(block)
    return places, max((places[block.name] + block.size for block in known), default=0)


def _forbidden(
    block: Block, other: Block, place: int, distances: Mapping[tuple[str, str], int], align: int
) -> tuple[int, int]:
    """The places, from the first to before the last, at which a block meets another one."""
    first, last = place - block.size + 1, place + other.size
    as_results, as_input = distances.get((block.name, other.name)), distances.get((other.name, block.name))
    if as_results is not None:
        first = max(first, place - as_results + 1)
    if as_input is not None:
        last = min(last, place + as_input)
    return first, -(-last // align) * align


def bytes_used(blocks: Iterable[Block], places: Mapping[str, int], step: int) -> int:
    """The bytes of all blocks that a step needs, those that several share once."""
    used, done = 0, 0
    spans = [
        (places[block.name], places[block.name] + block.size) for block in blocks if block.begin <= step <= block.end
    ]
    for begin, end in sorted(spans):
        used, done = used + max(0, end - max(begin, done)), max(done, end)
    return used
