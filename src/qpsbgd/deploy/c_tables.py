"""Layers with weights ±1 in C without products: sums with all signs of a few inputs are looked up.

Eight inputs have 256 sums with signs, which are computed once for all units, and a byte of weights picks one. That is
one addition per eight weights, and weights stay one bit each. Inputs are real numbers, or whole numbers of 8 bits.
"""

from __future__ import annotations

from dataclasses import dataclass

from qpsbgd.deploy.c_values import SCRATCH, Frame
from qpsbgd_runtime.operations import Weights

_MANY_LOOKUPS = 48
"""Uses of a table from which 256 sums of eight inputs pay, rather than 16 of four."""


@dataclass(frozen=True)
class Tables:
    """Sums with signs of the inputs that share a word of weights.

    Attributes:
        inputs: How many inputs there are.
        word: Bits of a word, and inputs of a block.
        share: Inputs of a table, 4 or 8.
        each: Whether every unit has a factor of its own.
        source: C type of the inputs.
    """

    inputs: int
    word: int
    share: int
    each: bool
    source: str

    @classmethod
    def best(cls, weights: Weights, frame: Frame, *, inputs: int, uses: int, more: int = 0) -> Tables:
        """Tables of so many inputs that are used so often; reserves their functions and memory, and `more` numbers."""
        each = not isinstance(weights.coefficients, tuple)
        made = cls(inputs, frame.word, 8 if uses >= _MANY_LOOKUPS else 4, each, frame.before.type)
        frame.constants.need(made.numbers + more, made.number, made._helpers())
        return made

    @property
    def number(self) -> str:
        """C type of the sums; whole numbers have no factors."""
        return "float" if self.source == "float" else "int32_t"

    @property
    def scratch(self) -> str:
        """The array that begins with the tables."""
        return SCRATCH[self.number]

    def _helpers(self) -> dict[str, str]:
        """The functions that `calls` needs, by name."""
        helpers = {"APART": _APART, f"signed_sums {self.source}": self._typed(_SIGNED_SUMS)}
        helpers[f"fill_{self._name}"] = self._typed(_FILL[self.share])
        return helpers | {self._look_up(count): self._function(count) for count, _, _ in self._blocks()}

    def _typed(self, text: str) -> str:
        """C code for real numbers as code for these inputs."""
        if self.source == "float":
            return text
        for name in ("signed_sums", "fill_nibbles", "fill_bytes"):
            text = text.replace(name, f"{name}_{self.source[:-2]}")
        text = text.replace("(const float *x, int32_t stride", f"(const {self.source} *x, int32_t stride")
        return text.replace("float", "int32_t").replace("0.0f", "0")

    @property
    def entries(self) -> int:
        """Sums of one table."""
        return int(2**self.share)

    @property
    def numbers(self) -> int:
        """Sums of all tables."""
        return self.word // self.share * self.entries

    def _blocks(self) -> list[tuple[int, int, int]]:
        """Inputs per block, the first block and the one behind the last: of all full blocks, and of what is left."""
        full, rest = divmod(self.inputs, self.word)
        return [(self.word, 0, full)] * (full > 0) + [(rest, full, full + 1)] * (rest > 0)

    def _look_up(self, count: int) -> str:
        return f"look_up_{-(-count // self.share)}_{self._name}{'_each' if self.each else ''}"

    @property
    def _name(self) -> str:
        name = "bytes" if self.share == 8 else "nibbles"
        return name if self.source == "float" else f"{name}_{self.source[:-2]}"

    def _function(self, count: int) -> str:
        terms = []
        for table in range(-(-count // self.share)):
            bits = f"w >> {table * self.share} & {self.entries - 1}" if table else f"w & {self.entries - 1}"
            terms.append(f"t{table}[{bits}]")
        tables = ", ".join(f"*t{k} = {self.scratch} + {k * self.entries}" for k in range(len(terms)))
        while len(terms) > 1:  # in pairs, which wait less for each other
            pairs = [terms[k : k + 2] for k in range(0, len(terms), 2)]
            terms = [f"({pair[0]} + {pair[1]})" if len(pair) == 2 else pair[0] for pair in pairs]
        given, factor = ("const float *factors, ", "factors[unit] * ") if self.each else ("float factor, ", "factor * ")
        if self.number != "float":
            given = factor = ""
        head = {"name": self._look_up(count), "number": self.number, "given": given}
        return _LOOK_UP.format(**head, tables=tables, factor=factor, sum=terms[0])

    def calls(self, *, source: str, stride: int, use: str) -> list[str]:
        """Statements that go through all inputs, `stride` apart from `source` on, block by block.

        `use` are statements with the tables of block `block`, and LOOK_UP for the function.
        """
        lines = []
        for count, begin, end in self._blocks():
            place = f"{source} + block * {self.word * stride}"
            lines += [
                f"for (int32_t block = {begin}; block < {end}; block++) {{",
                f"fill_{self._name}({place}, {stride}, {count}, {self.scratch});",
                *use.replace("LOOK_UP", self._look_up(count)).split("\n"),
                "}",
            ]
        return lines


_APART = """
#if defined(__GNUC__)
#define APART __attribute__((noinline)) /* inside other loops it would run short of registers */
#else
#define APART
#endif
"""

_SIGNED_SUMS = """
/* All sums of four numbers with signs: bit k of the index is 1 for +, 0 for -. */
static void signed_sums(const float *x, float *sums)
{
    const float a = x[0] + x[1], b = x[0] - x[1], c = x[2] + x[3], d = x[2] - x[3];
    const float low[4] = {-a, b, -b, a}, high[4] = {-c, d, -d, c};
    for (int32_t i = 0; i < 4; i++)
        for (int32_t j = 0; j < 4; j++)
            sums[4 * i + j] = high[i] + low[j];
}
"""

_FILL = {
    4: """
/* The sums with signs of every four of `count` numbers. */
static void fill_nibbles(const float *x, int32_t stride, int32_t count, float *tables)
{
    for (int32_t k = 0; k < count; k += 4, tables += 16) {
        float four[4];
        for (int32_t i = 0; i < 4; i++)
            four[i] = k + i < count ? x[(k + i) * stride] : 0.0f;
        signed_sums(four, tables);
    }
}
""",
    8: """
/* The sums with signs of every eight of `count` numbers. */
static void fill_bytes(const float *x, int32_t stride, int32_t count, float *tables)
{
    for (int32_t k = 0; k < count; k += 8, tables += 256) {
        float eight[8], low[16], high[16];
        for (int32_t i = 0; i < 8; i++)
            eight[i] = k + i < count ? x[(k + i) * stride] : 0.0f;
        signed_sums(eight, low);
        signed_sums(eight + 4, high);
        for (int32_t i = 0; i < 16; i++) {
            float *t = tables + 16 * i;
            const float h = high[i];
            t[0] = h + low[0]; t[1] = h + low[1]; t[2] = h + low[2]; t[3] = h + low[3];
            t[4] = h + low[4]; t[5] = h + low[5]; t[6] = h + low[6]; t[7] = h + low[7];
            t[8] = h + low[8]; t[9] = h + low[9]; t[10] = h + low[10]; t[11] = h + low[11];
            t[12] = h + low[12]; t[13] = h + low[13]; t[14] = h + low[14]; t[15] = h + low[15];
        }
    }
}
""",
}

_LOOK_UP = """
/* Adds to every unit's sum what its word of signs picks from the tables. */
APART static void {name}(const word *words, int32_t units, {given}{number} *restrict sums)
{{
    const {number} {tables};
    for (int32_t unit = 0; unit < units; unit++) {{
        const word w = words[unit];
        sums[unit] += {factor}{sum};
    }}
}}
"""
