"""The texts of a network in C: header, source, self-test, and what a layout adds."""

from __future__ import annotations

import re

from qpsbgd.deploy.c_layout import Layout, added_texts, self_test
from qpsbgd.deploy.c_network import Network
from qpsbgd.deploy.c_templates import CHECK, CHECK_ROWS, HEADER, HELPERS, NEAREST, PROGRAM, SOURCE
from qpsbgd.deploy.c_values import Frame, Values, input_name, width

_MEMBERS = {
    "int64_t": "outputs",
    "float": "reals",
    "int32_t": "sums",
    "word": "bits",
    "int8_t": "small",
    "uint8_t": "bytes",
}
"""Names of the arena's members, by the C type that they have."""


def source_texts(network: Network, name: str, layout: Layout) -> list[str]:
    """The texts of a layout's files, in the order of `file_names`."""
    first, last = network.input, network.output
    common = {"name": name, "prefix": name.upper(), "input": first.type, "output": last.type}
    mathematics = any(re.search(r"\b[a-z]+f\(", body) for _, body in network.functions)
    rows = network.table_rows
    test = self_test(network.packed, network.input_shape, integer=network.integer, rows=rows, **common)
    program = _program(network, **common, library=" -lm" if mathematics else "")
    added = added_texts(
        layout, name=name, prefix=name.upper(), input=first.type, program=program, mathematics=mathematics
    )
    return [_header(network, **common), _source(network, mathematics, **common), test, *added]


def _header(network: Network, *, name: str, prefix: str, **types: str) -> str:
    steps, first, last = network.steps, network.input, network.output
    counts = {"OUTPUT": network.output_step} if network.integer else {}
    gives = f"Outputs are integers; times {prefix}_OUTPUT_STEP they are the trained network's outputs."
    takes = "Inputs count by their sign: +1 for 0 and above, -1 below."
    if steps is not None:
        takes = (
            f"Inputs are integers from {steps.low} to {steps.high}, which count {prefix}_INPUT_STEP: the trained "
            "network's\n   inputs divided by it and rounded."
        )
        counts["INPUT"] = steps.scale
    elif not network.integer:
        takes = (
            f"Inputs must be finite: where one is not, {name}_run returns -1 and writes no outputs, and\n"
            f"   {name}_classify returns -1. Compiled with -DQPSBGD_UNCHECKED they are not looked at, and NaN or\n"
            "   infinite inputs give arbitrary outputs."
        )
        if network.table_rows is not None:
            takes += f"\n   They are integers from 0 to {network.table_rows - 1}; others are refused likewise."
        gives = "Outputs are those of the trained network."
    return HEADER.format(
        **types,
        name=name,
        prefix=prefix,
        takes=takes,
        gives=gives,
        steps="".join(f"#define {prefix}_{end}_STEP {step:.17g}\n" for end, step in counts.items()),
        inputs=first.channels * first.positions,
        outputs=last.channels * last.positions,
        flash=network.constants.size,
        ram=network.ram_bytes,
    )


def _program(network: Network, **common: str) -> str:
    """The program that reads samples."""
    read, nearest, steps, rows = "(float)value", "", network.steps, network.table_rows
    if steps is not None:
        read = f"({common['input']})nearest((double)(float)value / {common['prefix']}_INPUT_STEP)"
        nearest = NEAREST.format(low=steps.low, high=steps.high)
    elif network.integer:
        read = "(int8_t)(value >= 0 ? 1 : -1)"
    return PROGRAM.format(
        **common,
        read=read,
        helper=nearest,
        show='"%lld ", (long long)output[k]' if network.integer else '"%.9g ", (double)output[k]',
        inputs="finite numbers" if rows is None else f"integers from 0 to {rows - 1}",
    )


def _source(network: Network, mathematics: bool, **common: str) -> str:
    """The source, in which every step is a function, but for steps with the same body."""
    shared, word = network.shared_functions(), network.constants.word
    overwriting = {shared[frame.number] for frame, _ in network.functions if network.overwrites_inputs(frame)}
    bodies = "\n".join(
        _definition(frame, body, overwrites=frame.number in overwriting)
        for frame, body in network.functions
        if shared[frame.number] == frame.number
    )
    constants = network.constants.text()
    kinds = {values.type for frame, _ in network.functions for values in (*frame.inputs, frame.after)}
    kinds |= {frame.scratch[1] for frame, _ in network.functions if frame.scratch[0]}
    sizes = {kind: -(-network.ram_bytes // width(kind, word)) for kind in sorted(kinds)}
    members = "".join(f"    {kind} {_MEMBERS[kind]}[{size}];\n" for kind, size in sizes.items())
    helpers = f"typedef uint{word}_t word;\n" if "word" in bodies + constants else ""
    helpers += "".join(text for name, text in HELPERS.items() if name in bodies)
    includes = "#include <float.h>\n" if "FLT_MAX" in bodies else ""
    includes += "#include <math.h>\n" if mathematics else ""
    includes += "" if network.integer else "#include <string.h>\n"
    check = "" if network.integer else CHECK.format(**common)
    check += "" if network.table_rows is None else CHECK_ROWS.format(**common, rows=network.table_rows)
    return SOURCE.format(
        **common,
        includes=includes,
        helpers=helpers.replace("BUILTIN", "__builtin_popcountll" if word == 64 else "__builtin_popcountl"),
        constants=constants,
        buffers=f"static union {{\n{members}}} arena;\n{''.join(network.constants.helpers.values())}",
        bodies=bodies,
        check=check,
        calls="\n".join(_call(network, frame, shared[frame.number], body) for frame, body in network.functions),
        answers=_pointer(network, network.output),
    )


def _pointer(network: Network, values: Values) -> str:
    """A pointer to values in the arena or to the caller's."""
    if values.name not in network.places:
        return f"{values.name} + {values.offset}" if values.offset else values.name
    size = width(values.type, network.constants.word)
    return f"arena.{_MEMBERS[values.type]} + {network.places[values.name] // size + values.offset}"


def _call(network: Network, frame: Frame, number: int, body: str) -> str:
    """The call of a step, whose function has this number."""
    values = (*frame.inputs, frame.after)
    given = [each.name if each.name == "output" else _pointer(network, each) for each in values]
    if frame.scratch[0]:
        given.append(f"arena.{_MEMBERS[frame.scratch[1]]} + {network.places[f'scratch{frame.number}'] // 4}")
    arguments = f"({', '.join(given)})"
    return f"    COUNT(step{number}, {arguments});" if "popcount" in body else f"    step{number}{arguments};"


def _definition(frame: Frame, body: str, *, overwrites: bool) -> str:
    """The C function of a step, which may write over its inputs; one that counts bits may be compiled twice."""
    alone = "" if overwrites else "restrict "
    types = {input_name(at): f"const {values.type} *{alone}" for at, values in enumerate(frame.inputs)}
    types |= {"out": f"{frame.after.type} *{alone}"}
    types |= {"scratch": f"{frame.scratch[1]} *restrict "} if frame.scratch[0] else {}
    given = ", ".join(f"{type_}{name}" for name, type_ in types.items())
    function = f"void step{frame.number}({given})\n{{\n{body}\n}}\n"
    if "popcount" not in body:
        return f"static {function}"
    return f"COUNTING {function}COUNTED(step{frame.number}, ({given}), ({', '.join(types)}))\n"
