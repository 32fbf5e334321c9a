"""Networks as plain C99: constant arrays and loops, no heap, and no floating point in fully binary networks."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

from qpsbgd.deploy.c_bands import Bands, Joined, Rows, candidates, split_into_bands
from qpsbgd.deploy.c_layout import Layout, added_texts, file_names, self_test
from qpsbgd.deploy.c_memory import Block, arrange, bytes_used
from qpsbgd.deploy.c_passes import in_small_numbers
from qpsbgd.deploy.c_sizes import sizes
from qpsbgd.deploy.c_steps import STEPS, fixed_point, input_steps
from qpsbgd.deploy.c_templates import CHECK, CHECK_ROWS, HEADER, HELPERS, NEAREST, PROGRAM, SOURCE
from qpsbgd.deploy.c_tensor_steps import TENSOR_STEPS
from qpsbgd.deploy.c_values import TYPES, Constants, Frame, Statements, Values, input_name, width
from qpsbgd_qubo.files.atomic import writing
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


@dataclass(frozen=True)
class CSource:
    """The C code of a network; `print` tells where it is and what it needs.

    Attributes:
        files: The header, the source, the self-test, then what the layout adds.
        flash_bytes: Size of all constant arrays in the source, without the code. A compiler may put an array of one
            number into the code instead, and adds a few constants of its own.
        ram_bytes: Size of the static buffers, without the caller's arrays and the stack.
        integer: Whether only integers occur.
        steps: What every step needs, in the order in which they run.
        code_bytes: Size of the machine code as the given compiler makes it, without library functions; None without.
        stack_bytes: The deepest use of the stack by NAME_run, without library functions; None without a compiler.
    """

    files: tuple[Path, ...]
    flash_bytes: int
    ram_bytes: int
    integer: bool
    steps: tuple[CStep, ...]
    code_bytes: int | None = None
    stack_bytes: int | None = None

    def __str__(self) -> str:
        names = ", ".join(str(path) for path in self.files)
        numbers = "integer-only" if self.integer else "with floating point"
        flash = max(self.steps, key=lambda step: step.flash_bytes)
        compiled = ""
        if self.code_bytes is not None:
            deepest = max(self.steps, key=lambda step: step.stack_bytes or 0)
            compiled = (
                f"; {self.code_bytes:,} bytes of code (flash) and {self.stack_bytes:,} of stack, most of it in "
                f"{deepest.name}, without library functions"
            )
        return (
            f"{names}: {self.flash_bytes:,} bytes of constants (flash), {self.ram_bytes:,} bytes of buffers (RAM), no "
            f"heap, {numbers}; most flash is for {flash.name}, most RAM for {largest(self.steps).name}{compiled}"
        )


def largest(steps: Sequence[CStep]) -> CStep:
    """The step with the most buffers in use."""
    return max(steps, key=lambda step: step.ram_bytes)


def write_c(
    operations: Sequence[Operation],
    folder: Path,
    *,
    input_shape: Shape,
    name: str,
    word_bits: int,
    layout: Layout,
    ram: int | None,
    compiler: str | None = None,
) -> CSource:
    """Write all files of a layout into a folder, which is created where it is missing."""
    names = file_names(name, layout)
    if not re.fullmatch(r"[A-Za-z][A-Za-z0-9_]*", name):
        raise ValueError(f"name must be a C identifier that begins with a letter, got {name!r}")
    if word_bits not in (32, 64):
        raise ValueError(f"word_bits must be 32 or 64, got {word_bits!r}")
    network = _Network(operations, input_shape, word_bits)
    if ram is not None and network.ram_bytes > ram:
        network = network.in_bands(ram)
    if ram is not None and network.ram_bytes > ram:
        step = largest(network.used)
        raise ValueError(
            f"the network needs {network.ram_bytes:,} bytes of buffers, but ram={ram:,}: most of them in {step.name}, "
            "with what goes in and what comes out"
            f"{', by bands of rows where images allow it' if network.integer else ''}; give that layer fewer channels "
            "or a smaller image, or a pool or a stride before it"
            f"{'' if network.integer else '; integers take a quarter, and go by bands: see QuantActivation'}"
        )
    files = tuple(folder / file_name for file_name in names)
    for path, text in zip(files, network.texts(name, layout), strict=True):
        path.parent.mkdir(parents=True, exist_ok=True)
        with writing(path) as file:
            file.write(text.encode())
    source = CSource(files, network.constants.size, network.ram_bytes, network.integer, network.used)
    if compiler is None:
        return source
    whole, steps = sizes(files[1], name, compiler)
    used = list[CStep]()
    for number, step in zip(network.shared_functions().values(), network.used, strict=True):
        size = steps[number]
        first = number == len(used) + 1
        used.append(step._replace(code_bytes=size.code if first else 0, stack_bytes=size.stack))
    return replace(source, steps=tuple(used), code_bytes=whole.code, stack_bytes=whole.stack)


class _Network:
    """The functions of a network, in the order in which they are called, with their bodies, and their buffers."""

    def __init__(
        self, operations: Sequence[Operation], input_shape: Shape, word: int, bands: Sequence[Bands] = ()
    ) -> None:
        self.constants = Constants(word)
        self._operations, self._input_shape = operations, input_shape  # as packed: the self-test computes their outputs
        operations = self._whole = in_small_numbers(operations, input_shape)
        self._bands = bands
        self.integer = _is_integer(operations)
        self.steps = input_steps(operations) if self.integer else None
        for part in sorted(bands, reverse=True):  # a part leaves the numbers before it as they are
            operations = split_into_bands(operations, walk(operations, input_shape), part)
        self._output = max(
            (n for n, operation in enumerate(operations, 1) if not isinstance(operation, Reshape)), default=0
        )
        last = operations[self._output - 1] if self._output else None
        self.output_step = fixed_point(last)[1] if self.integer and isinstance(last, Scale) else 1.0
        tables = [len(operation.table) for operation in operations if isinstance(operation, Embedding)]
        self.rows = min(tables, default=None)  # of the tables in which inputs are looked up
        self.functions: list[tuple[Frame, str]] = []
        self._needs: list[tuple[str, int]] = []  # names and constants of functions
        self._last = last_uses(operations)
        type_ = "float" if not self.integer else "int8_t" if self.steps is None else TYPES[self.steps.kind]
        first = replace(Values.of("real", input_shape), type=type_, name="input")
        self._values: dict[int, Values] = {0: first}
        self._into = {
            source: number
            for number, operation in enumerate(operations, 1)
            if isinstance(operation, Joined)
            for source in operation.inputs
        }
        stages = walk(operations, input_shape)
        matrices = [stage for stage in stages if isinstance(stage.operation, Dense) and len(stage.after.shape) > 1]
        self._by_rows = {
            source for matrix in matrices for source in matrix.sources
        }  # what dense layers take row by row
        self._written: dict[int, int] = {}  # numbers of a result by bands that earlier bands have written
        fused: Operation | None = None
        for number, stage in enumerate(stages, 1):
            if stage.operation is not fused:
                fused = self._epilogue(stages, number)
                self._add(stage, fused, number)
        if not self.functions:
            raise ValueError("the network computes nothing: it has no layers")
        self._places, self.ram_bytes, used = self._arena()
        self.used = tuple(CStep(*needs, bytes_) for needs, bytes_ in zip(self._needs, used, strict=True))

    def in_bands(self, ram: int) -> _Network:
        """The network with images by bands of rows, if possible within so many bytes.

        Bands are sought around the step that needs most memory: few bands of few steps before more of them.
        """
        smallest, stages = self, walk(self._whole, self._input_shape)
        while True:
            step, tried = re.sub(", rows [0-9]+ to [0-9]+", "", largest(smallest.used).name), list[_Network]()
            for number in [number for number, operation in enumerate(self._whole, 1) if str(operation) == step]:
                for part in candidates(stages, number):
                    kept = [other for other in smallest._bands if other.last < part.first or part.last < other.first]
                    ends = stages[part.first - 1].before[0], stages[part.last - 1].after
                    least = max(Values.of(*end).size(self.constants.word) for end in ends if end.kind != "real")
                    if least >= smallest.ram_bytes or not split_into_bands(self._whole, stages, part):
                        continue
                    bands = [*kept, part]
                    network = _Network(self._operations, self._input_shape, self.constants.word, bands)
                    if network.ram_bytes <= ram:
                        return network
                    tried.append(network)
            best = min(tried, key=lambda network: network.ram_bytes, default=smallest)
            if best.ram_bytes >= smallest.ram_bytes:
                return smallest
            smallest = best

    def _epilogue(self, stages: Sequence[Stage], number: int) -> Threshold | Requantize | None:
        """What is done to a layer's sums, if nothing else takes them."""
        following = stages[number] if number < len(stages) else None
        layer = stages[number - 1]
        if not isinstance(layer.operation, Weighted) or following is None:
            return None
        straight = following.sources == (number,) and self._last[number] == number + 1
        return following.operation if straight and isinstance(following.operation, Threshold | Requantize) else None

    def _add(self, stage: Stage, fused: Threshold | Requantize | None, number: int) -> None:
        """Add the function of the operation with this number, and of the threshold after it where there is one."""
        operation, inputs = stage.operation, tuple(self._values[source] for source in stage.sources)
        if isinstance(operation, Rows):
            self._values[number] = inputs[0].some_rows(*operation.span, self.constants.word)
            return
        if isinstance(operation, Joined):
            self._values[number] = replace(self._layout(stage, None, number), name=inputs[0].name)
            return
        before, after = inputs[0], self._layout(stage, fused, number)
        _check_order(operation, before)
        result = number if fused is None else number + 1
        if isinstance(operation, Reshape) and (view := _view(before, after)):
            self._values[result] = view
            return
        if join := self._into.get(result):
            after = replace(after, name=f"value{join}", offset=self._written.get(join, 0))
            self._written[join] = after.offset + after.count(self.constants.word)
        elif result < self._output:
            after = replace(after, name=f"value{number}")
        else:
            after = replace(after, name="output", type="int64_t" if self.integer else "float")
        if type(operation) not in STATEMENTS:
            raise ValueError(f"{operation} cannot be written in C; use packed or ONNX")
        frame = Frame(len(self.functions) + 1, inputs, after, self.constants, epilogue=fused)
        flash = self.constants.size
        self.functions.append((frame, STATEMENTS[type(operation)](operation, frame)))
        self._needs.append((str(operation), self.constants.size - flash))
        self._values[result] = after

    def _layout(self, stage: Stage, fused: Threshold | Requantize | None, number: int) -> Values:
        """What comes out of an operation; integers stand by rows behind rows, and before dense layers of rows."""
        kind = stage.after.kind if fused is None else fused.gives
        rows = kind != "real" and (self._values[stage.sources[0]].rows or number in self._by_rows)
        return Values.of(kind, stage.after.shape, rows=rows)

    def _arena(self) -> tuple[dict[str, int], int, list[int]]:
        """Where values, scratch memory and NAME_classify's outputs stand in the arena, its size, and what steps use."""
        word, frames = self.constants.word, [frame for frame, _ in self.functions]
        blocks = {}
        for name in dict.fromkeys(frame.after.name for frame in frames):
            made = [frame for frame in frames if frame.after.name == name]
            taken = [frame.number for frame in frames if name in [values.name for values in frame.inputs]]
            size, end = max(frame.after.span(word)[1] for frame in made), max(taken, default=len(frames))
            blocks[name] = Block(name, size, made[0].number, end)
        distances = {
            (results, name): distance
            for results, block in blocks.items()
            for name, other in blocks.items()
            if other.begin < block.begin <= other.end
            and (distance := _distance(frames, results, name, word)) is not None
        }
        blocks |= {
            f"scratch{frame.number}": Block(f"scratch{frame.number}", 4 * frame.scratch[0], frame.number, frame.number)
            for frame in frames
            if frame.scratch[0]
        }
        align = 8 if word == 64 or self.integer else 4
        places, size = arrange([*blocks.values()], distances, align)
        used = [bytes_used(blocks.values(), places, frame.number) for frame, _ in self.functions]
        return places, -(-size // align) * align, used

    def texts(self, name: str, layout: Layout) -> list[str]:
        """The texts of a layout's files."""
        first, last = self._values[0], self.functions[-1][0].after
        common = {"name": name, "prefix": name.upper(), "input": first.type, "output": last.type}
        takes, gives, ends = self._ends(**common)
        sizes = {"inputs": first.channels * first.positions, "outputs": last.channels * last.positions}
        memory = {"flash": self.constants.size, "ram": self.ram_bytes}
        steps = "".join(f"#define {name.upper()}_{end}_STEP {step:.17g}\n" for end, step in ends.items())
        header = HEADER.format(**common, **sizes, **memory, steps=steps, takes=takes, gives=gives)
        mathematics = any(re.search(r"\b[a-z]+f\(", body) for _, body in self.functions)
        source = self._source(mathematics, **common)
        read = "(int8_t)(value >= 0 ? 1 : -1)" if self.integer else "(float)value"
        if self.steps is not None:
            read = f"({first.type})nearest((double)(float)value / {name.upper()}_INPUT_STEP)"
        program = PROGRAM.format(
            **common,
            read=read,
            helper="" if self.steps is None else NEAREST.format(low=self.steps.low, high=self.steps.high),
            show='"%lld ", (long long)output[k]' if self.integer else '"%.9g ", (double)output[k]',
            library=" -lm" if mathematics else "",
            inputs="finite numbers" if self.rows is None else f"integers from 0 to {self.rows - 1}",
        )
        test = self_test(self._operations, self._input_shape, integer=self.integer, rows=self.rows, **common)
        kept = {"name": name, "prefix": name.upper(), "input": first.type}
        return [header, source, test, *added_texts(layout, **kept, program=program, mathematics=mathematics)]

    def _ends(self, *, name: str, prefix: str, **_: str) -> tuple[str, str, dict[str, float]]:
        """The header's words on inputs and outputs, and the steps that they count."""
        if not self.integer:
            takes = (
                f"Inputs must be finite: where one is not, {name}_run returns -1 and writes no outputs, and\n"
                f"   {name}_classify returns -1. Compiled with -DQPSBGD_UNCHECKED they are not looked at, and NaN or\n"
                "   infinite inputs give arbitrary outputs."
            )
            if self.rows is not None:
                takes += f"\n   They are integers from 0 to {self.rows - 1}; others are refused likewise."
            return takes, "Outputs are those of the trained network.", {}
        gives = f"Outputs are integers; times {prefix}_OUTPUT_STEP they are the trained network's outputs."
        if self.steps is None:
            return "Inputs count by their sign: +1 for 0 and above, -1 below.", gives, {"OUTPUT": self.output_step}
        takes = (
            f"Inputs are integers from {self.steps.low} to {self.steps.high}, which count "
            f"{prefix}_INPUT_STEP: the trained network's\n   inputs divided by it and rounded."
        )
        return takes, gives, {"OUTPUT": self.output_step, "INPUT": self.steps.scale}

    def shared_functions(self) -> dict[int, int]:
        """For every step the number of its function: that of the first one of the same body, as of bands of rows."""
        first: dict[tuple[str, ...], int] = {}
        shared = {}
        for frame, body in self.functions:
            key = (body, *(values.type for values in (*frame.inputs, frame.after)), frame.scratch[1])
            shared[frame.number] = first.setdefault(key, frame.number)
        return shared

    def _source(self, mathematics: bool, **common: str) -> str:
        """The source, in which every operation is a function."""
        shared = self.shared_functions()
        frames = {number: [frame for frame, _ in self.functions if shared[frame.number] == number] for number in shared}
        bodies = "\n".join(
            _definition(frame, body, meets=any(map(self._meets, frames[frame.number])))
            for frame, body in self.functions
            if frames[frame.number]
        )
        calls = "\n".join(self._call(frame, shared[frame.number], body) for frame, body in self.functions)
        constants, word = self.constants.text(), self.constants.word
        kinds = {values.type for frame, _ in self.functions for values in (*frame.inputs, frame.after)}
        kinds |= {frame.scratch[1] for frame, _ in self.functions if frame.scratch[0]}
        sizes = {kind: -(-self.ram_bytes // width(kind, word)) for kind in sorted(kinds)}
        members = "".join(f"    {kind} {_MEMBERS[kind]}[{size}];\n" for kind, size in sizes.items())
        buffers = f"static union {{\n{members}}} arena;\n{''.join(self.constants.helpers.values())}"
        helpers = f"typedef uint{word}_t word;\n" if "word" in bodies + constants else ""
        helpers += "".join(text for name, text in HELPERS.items() if name in bodies)
        helpers = helpers.replace("BUILTIN", "__builtin_popcountll" if word == 64 else "__builtin_popcountl")
        includes = "#include <float.h>\n" if "FLT_MAX" in bodies else ""
        includes += "#include <math.h>\n" if mathematics else ""
        includes += "" if self.integer else "#include <string.h>\n"
        check = "" if self.integer else CHECK.format(**common)
        check += "" if self.rows is None else CHECK_ROWS.format(**common, rows=self.rows)
        inner = {"constants": constants, "buffers": buffers, "bodies": bodies, "check": check, "calls": calls}
        answers = self._place(self.functions[-1][0].after)
        return SOURCE.format(**common, includes=includes, helpers=helpers, answers=answers, **inner)

    def _place(self, values: Values) -> str:
        """A pointer to values in the arena or to the caller's."""
        if values.name in ("input", "output") and values.name not in self._places:
            return f"{values.name} + {values.offset}" if values.offset else values.name
        size = width(values.type, self.constants.word)
        return f"arena.{_MEMBERS[values.type]} + {self._places[values.name] // size + values.offset}"

    def _meets(self, frame: Frame) -> bool:
        """Whether results are written over inputs."""
        word = self.constants.word
        (begin, end), *inputs = (
            [self._places[values.name] + at for at in values.span(word)]
            for values in (frame.after, *frame.inputs)
            if values.name in self._places
        )
        return any(first < end and begin < last for first, last in inputs)

    def _call(self, frame: Frame, number: int, body: str) -> str:
        places = [
            values.name if values.name == "output" else self._place(values) for values in (*frame.inputs, frame.after)
        ]
        if frame.scratch[0]:
            places.append(f"arena.{_MEMBERS[frame.scratch[1]]} + {self._places[f'scratch{frame.number}'] // 4}")
        given = f"({', '.join(places)})"
        return f"    COUNT(step{number}, {given});" if "popcount" in body else f"    step{number}{given};"


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


_MEMBERS = {
    "int64_t": "outputs",
    "float": "reals",
    "int32_t": "sums",
    "word": "bits",
    "int8_t": "small",
    "uint8_t": "bytes",
}


def _definition(frame: Frame, body: str, *, meets: bool) -> str:
    """The C function of a step, whose results may meet its inputs; one that counts bits may be compiled twice."""
    alone = "" if meets else "restrict "
    types = {input_name(at): f"const {values.type} *{alone}" for at, values in enumerate(frame.inputs)}
    types |= {"out": f"{frame.after.type} *{alone}"}
    types |= {"scratch": f"{frame.scratch[1]} *restrict "} if frame.scratch[0] else {}
    given = ", ".join(f"{type_}{name}" for name, type_ in types.items())
    function = f"void step{frame.number}({given})\n{{\n{body}\n}}\n"
    if "popcount" not in body:
        return f"static {function}"
    return f"COUNTING {function}COUNTED(step{frame.number}, ({given}), ({', '.join(types)}))\n"


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
