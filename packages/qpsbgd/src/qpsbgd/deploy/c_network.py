"""The plan of a network in C: the function of every step, the constants, and where values stand in memory."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

from qpsbgd.deploy.c_bands import Bands, Joined, Rows, candidates, split_into_bands
from qpsbgd.deploy.c_memory import Block, arrange, bytes_used
from qpsbgd.deploy.c_passes import in_small_numbers
from qpsbgd.deploy.c_steps import STEPS, fixed_point, input_steps
from qpsbgd.deploy.c_tensor_steps import TENSOR_STEPS
from qpsbgd.deploy.c_values import TYPES, Constants, Frame, Statements, Values
from qpsbgd_runtime.operations import SMALL, Dense, Operation, Reshape, Shape, Sign, Spins, Weighted
from qpsbgd_runtime.stages import Stage, last_uses, walk
from qpsbgd_runtime.tensor_operations import Embedding
from qpsbgd_runtime.unit_operations import Quantize, Requantize, Scale, Threshold

STATEMENTS: Statements = STEPS | TENSOR_STEPS
"""All operations that C has."""


class CStep(NamedTuple):
    """What a step of a network needs in C: bytes of constant arrays, and of the buffers that are in use while it runs.

    `name` is its operation's. Code and stack, with the functions that the step calls, are None where no compiler was
    given; bands of rows may share their code, which counts once.
    """

    name: str
    flash_bytes: int
    ram_bytes: int
    code_bytes: int | None = None
    stack_bytes: int | None = None


def largest_step(steps: Sequence[CStep]) -> CStep:
    """The step with the most buffers in use."""
    return max(steps, key=lambda step: step.ram_bytes)


class Network:
    """The functions of a network, in the order in which they are called, with their bodies, and their buffers.

    Attributes:
        packed: The operations as they were packed.
        input_shape: The shape of a sample.
        input: The values that go in.
        integer: Whether only integers occur.
        steps: What inputs count in a network of integers, None for signs and for real numbers.
        output_step: What outputs count.
        table_rows: The rows of the tables in which inputs are looked up, None if they are not.
        constants: All constant arrays.
        functions: What every step's function takes and gives, and its body.
        places: Where values, scratch memory and NAME_classify's outputs begin in the arena, in bytes.
        ram_bytes: The arena's size.
        used: What every step needs.
    """

    def __init__(self, packed: Sequence[Operation], input_shape: Shape, word: int, bands: Sequence[Bands] = ()) -> None:
        self.packed, self.input_shape, self.constants = packed, input_shape, Constants(word)
        operations: Sequence[Operation] = in_small_numbers(packed, input_shape)
        self._whole, self._bands = operations, bands
        self.integer = _is_integer(operations)
        self.steps = input_steps(operations) if self.integer else None
        for part in sorted(bands, reverse=True):  # a part leaves the numbers before it as they are
            operations = split_into_bands(operations, walk(operations, input_shape), part)
        numbers = [n for n, operation in enumerate(operations, 1) if not isinstance(operation, Reshape)]
        self._output = max(numbers, default=0)
        last = operations[self._output - 1] if self._output else None
        self.output_step = fixed_point(last)[1] if self.integer and isinstance(last, Scale) else 1.0
        tables = [len(operation.table) for operation in operations if isinstance(operation, Embedding)]
        self.table_rows = min(tables, default=None)
        self.functions: list[tuple[Frame, str]] = []
        type_ = "float" if not self.integer else "int8_t" if self.steps is None else TYPES[self.steps.kind]
        self.input = replace(Values.of("real", input_shape), type=type_, name="input")
        self._add_all(operations)
        if not self.functions:
            raise ValueError("the network computes nothing: it has no layers")
        self.places, self.ram_bytes, used = self._arena()
        self.used = tuple(CStep(*needs, bytes_) for needs, bytes_ in zip(self._needs, used, strict=True))

    @property
    def output(self) -> Values:
        """The values that come out."""
        return self.functions[-1][0].after

    def in_bands(self, ram: int) -> Network:
        """The network with images by bands of rows, if possible within so many bytes.

        Bands are sought around the step that needs most memory: few bands of few steps before more of them.
        """
        smallest, word, stages = self, self.constants.word, walk(self._whole, self.input_shape)
        while True:
            step, tried = re.sub(", rows [0-9]+ to [0-9]+", "", largest_step(smallest.used).name), list[Network]()
            for number in [number for number, operation in enumerate(self._whole, 1) if str(operation) == step]:
                for part in candidates(stages, number):
                    kept = [other for other in smallest._bands if other.last < part.first or part.last < other.first]
                    ends = stages[part.first - 1].before[0], stages[part.last - 1].after
                    least = max(Values.of(*end).size(word) for end in ends if end.kind != "real")
                    if least >= smallest.ram_bytes or not split_into_bands(self._whole, stages, part):
                        continue
                    network = Network(self.packed, self.input_shape, word, [*kept, part])
                    if network.ram_bytes <= ram:
                        return network
                    tried.append(network)
            best = min(tried, key=lambda network: network.ram_bytes, default=smallest)
            if best.ram_bytes >= smallest.ram_bytes:
                return smallest
            smallest = best

    def _add_all(self, operations: Sequence[Operation]) -> None:
        """Add the functions of all operations; a threshold behind a layer's sums is part of the layer's function."""
        stages, last = walk(operations, self.input_shape), last_uses(operations)
        self._needs: list[tuple[str, int]] = []  # names and constants of functions
        self._values = {0: self.input}
        # For the bands of an image the number of the image, and how many of its numbers they have written.
        joined = [(n, operation.inputs) for n, operation in enumerate(operations, 1) if isinstance(operation, Joined)]
        self._into = {source: number for number, sources in joined for source in sources}
        self._written: dict[int, int] = {}
        matrices = [stage for stage in stages if isinstance(stage.operation, Dense) and len(stage.after.shape) > 1]
        self._by_rows = {source for stage in matrices for source in stage.sources}  # what these take row by row
        epilogue: Operation | None = None
        for number, stage in enumerate(stages, 1):
            if stage.operation is epilogue:
                continue
            following, epilogue = stages[number] if number < len(stages) else None, None
            if isinstance(stage.operation, Weighted) and following is not None:
                straight = following.sources == (number,) and last[number] == number + 1
                epilogue = following.operation if straight else None
            epilogue = epilogue if isinstance(epilogue, Threshold | Requantize) else None
            self._add(stage, epilogue, number)

    def _add(self, stage: Stage, epilogue: Threshold | Requantize | None, number: int) -> None:
        """Add the function of the operation with this number, and of what is done to its sums."""
        operation, inputs, word = stage.operation, tuple(self._values[n] for n in stage.sources), self.constants.word
        before = inputs[0]
        if isinstance(operation, Rows):
            self._values[number] = before.some_rows(*operation.span, word)
            return
        kind = stage.after.kind if epilogue is None else epilogue.gives
        by_rows = kind != "real" and (before.rows or number in self._by_rows)
        after = Values.of(kind, stage.after.shape, rows=by_rows)
        if isinstance(operation, Joined):
            self._values[number] = replace(after, name=before.name)
            return
        _check_order(operation, before)
        result = number if epilogue is None else number + 1
        if isinstance(operation, Reshape) and (view := _view(before, after)):
            self._values[result] = view
            return
        if join := self._into.get(result):
            after = replace(after, name=f"value{join}", offset=self._written.get(join, 0))
            self._written[join] = after.offset + after.count(word)
        elif result < self._output:
            after = replace(after, name=f"value{number}")
        else:
            after = replace(after, name="output", type="int64_t" if self.integer else "float")
        if type(operation) not in STATEMENTS:
            raise ValueError(f"{operation} cannot be written in C; use packed or ONNX")
        frame = Frame(len(self.functions) + 1, inputs, after, self.constants, epilogue=epilogue)
        flash = self.constants.size
        self.functions.append((frame, STATEMENTS[type(operation)](operation, frame)))
        self._needs.append((str(operation), self.constants.size - flash))
        self._values[result] = after

    def _arena(self) -> tuple[dict[str, int], int, list[int]]:
        """The places in the arena, its size, and the bytes that each step uses."""
        word, frames = self.constants.word, [frame for frame, _ in self.functions]
        blocks = {}
        for name in dict.fromkeys(frame.after.name for frame in frames):
            writing = [frame for frame in frames if frame.after.name == name]
            reading = [frame.number for frame in frames if name in [values.name for values in frame.inputs]]
            size, end = max(frame.after.span(word)[1] for frame in writing), max(reading, default=len(frames))
            blocks[name] = Block(name, size, writing[0].number, end)
        distances = {
            (results, name): distance
            for results, block in blocks.items()
            for name, other in blocks.items()
            if other.begin < block.begin <= other.end
            and (distance := _distance(frames, results, name, word)) is not None
        }
        scratches = [(f"scratch{frame.number}", frame) for frame in frames if frame.scratch[0]]
        blocks |= {name: Block(name, 4 * frame.scratch[0], frame.number, frame.number) for name, frame in scratches}
        align = 8 if word == 64 or self.integer else 4
        places, size = arrange([*blocks.values()], distances, align)
        used = [bytes_used(blocks.values(), places, frame.number) for frame in frames]
        return places, -(-size // align) * align, used

    def shared_functions(self) -> dict[int, int]:
        """For every step the number of its function: that of the first one of the same body, as of bands of rows."""
        first: dict[tuple[str, ...], int] = {}
        shared = {}
        for frame, body in self.functions:
            key = (body, *(values.type for values in (*frame.inputs, frame.after)), frame.scratch[1])
            shared[frame.number] = first.setdefault(key, frame.number)
        return shared

    def overwrites_inputs(self, frame: Frame) -> bool:
        """Whether a step's results are written over its inputs."""
        word = self.constants.word
        (begin, end), *inputs = (
            [self.places[values.name] + at for at in values.span(word)]
            for values in (frame.after, *frame.inputs)
            if values.name in self.places
        )
        return any(first < end and begin < last for first, last in inputs)


def _distance(frames: Sequence[Frame], results: str, name: str, word: int) -> int | None:
    """How many bytes values must begin behind results that steps may write over them; None where they may not."""
    most = []
    for frame in frames:
        if frame.after.name != results:
            continue
        begin, end = frame.after.span(word)
        for at, values in enumerate(frame.inputs):
            if values.name == name:
                if at not in frame.distances:
                    return None
                most.append(begin - values.span(word)[0] + frame.distances[at])
        later = [value for other in frames[frame.number :] for value in other.inputs if value.name == name]
        most += [end - value.span(word)[0] for value in later]
    return max(most, default=None)


def _check_order(operation: Operation, before: Values) -> None:
    """Refuse bits and numbers of 8 bits by rows where an operation takes images, and the other way round."""
    by_rows = isinstance(operation, Dense) and len(before.shape) > 1
    if before.kind in SMALL and before.rows != by_rows and not isinstance(operation, Spins | Scale):
        raise ValueError(f"{operation} takes values in a different order in C than they arrive in; use packed or ONNX")


def _view(before: Values, after: Values) -> Values | None:
    """What a reshape gives where all values stay where they are; None where they do not."""
    small, same = before.kind in SMALL, (before.channels, before.image) == (after.channels, after.image)
    if small and not same and after.positions != 1:
        return None
    return replace(before if small else after, shape=after.shape, name=before.name, type=before.type)


def _is_integer(operations: Sequence[Operation]) -> bool:
    """Whether real numbers occur only as inputs, of which signs or integers are taken, and as outputs."""
    rest = [operation for operation in operations if not isinstance(operation, Reshape)]
    if not rest or not isinstance(rest[0], Sign | Quantize) or not isinstance(rest[-1], Scale | Spins):
        return False
    return not any(operation.gives == "real" or operation.takes == ("real",) for operation in rest[1:-1])
