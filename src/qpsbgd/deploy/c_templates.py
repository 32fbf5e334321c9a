"""The fixed parts of generated C: header, source, checks and the program that reads samples."""

HEADER = """\
/* Made by qpsbgd. {flash} bytes of constants, {ram} bytes of static buffers, no heap.
   {takes}
   {gives}
   Not reentrant: calls from several threads need a lock. */
#ifndef {prefix}_H
#define {prefix}_H

#include <stdint.h>

#define {prefix}_INPUTS {inputs}
#define {prefix}_OUTPUTS {outputs}
{step}
/* Compute all outputs; returns 0, or -1 if an input is refused. */
int32_t {name}_run{signature};

/* The number of the largest output, or -1 if an input is refused. */
int32_t {name}_classify{classify};

#endif
"""

HELPERS = {
    "popcount(": """\

static int32_t popcount(word bits)
{
#if defined(__GNUC__) && !defined(QPSBGD_PORTABLE)
    return (int32_t)BUILTIN(bits);
#else
    int32_t count = 0;
    for (; bits; bits &= bits - 1)
        count++;
    return count;
#endif
}
""",
    "bit(": """\

static int32_t bit(const word *words, int32_t k)
{
    const int32_t size = (int32_t)(8 * sizeof(word));
    return (int32_t)(words[k / size] >> (k % size) & 1);
}
""",
}

SOURCE = """\
/* Made by qpsbgd; see {name}.h. */
#include "{name}.h"

{includes}{helpers}
{constants}
{buffers}
{bodies}
int32_t {name}_run{signature}
{{
{check}{calls}
    return 0;
}}

int32_t {name}_classify{classify}
{{
    static {output} output[{prefix}_OUTPUTS];
    int32_t best = 0;
    if ({name}_run(input, output) < 0)
        return -1;
    for (int32_t k = 1; k < {prefix}_OUTPUTS; k++)
        if (output[k] > output[best])
            best = k;
    return best;
}}
"""

# By bits, so that the check also works under -ffast-math, which takes all numbers for finite.
CHECK = """\
#ifndef QPSBGD_UNCHECKED
    for (int32_t k = 0; k < {prefix}_INPUTS; k++) {{
        uint32_t bits;
        memcpy(&bits, &input[k], sizeof bits);
        if ((bits & 0x7f800000u) == 0x7f800000u)
            return -1;
    }}
#endif
"""

PROGRAM = """\
/* Made by qpsbgd: reads samples, as numbers between blanks, and prints the class and all outputs of each.
   cc -std=c99 -O2 {name}.c {name}_main.c -o {name}{library} */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "{name}.h"

static {input} input[{prefix}_INPUTS];
static {output} output[{prefix}_OUTPUTS];

static int finite(double value)
{{
    uint64_t bits;
    memcpy(&bits, &value, sizeof bits);
    return (bits >> 52 & 0x7ff) != 0x7ff;
}}

int main(void)
{{
    double value;
    int32_t count = 0, sample = 0, good = 1;
    while (scanf("%lf", &value) == 1) {{
        good = good && finite(value);
        input[count++] = {read};
        if (count < {prefix}_INPUTS)
            continue;
        count = 0;
        sample++;
        if (!good || {name}_run(input, output) < 0) {{
            fprintf(stderr, "sample %" PRId32 ": inputs must be finite numbers\\n", sample);
            return 2;
        }}
        printf("%" PRId32 ": ", {name}_classify(input));
        for (int32_t k = 0; k < {prefix}_OUTPUTS; k++)
            printf({show});
        printf("\\n");
    }}
    return count != 0;
}}
"""
