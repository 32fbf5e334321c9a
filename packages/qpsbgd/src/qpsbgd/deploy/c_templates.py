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
{steps}
#ifdef __cplusplus
extern "C" {{
#endif

/* Compute all outputs; returns 0, or -1 if an input is refused. */
int32_t {name}_run(const {input} input[{prefix}_INPUTS], {output} output[{prefix}_OUTPUTS]);

/* The number of the largest output, or -1 if an input is refused. */
int32_t {name}_classify(const {input} input[{prefix}_INPUTS]);

/* Run the stored samples of {name}_test.c; returns 0, or the number of the first one with other outputs than stored. */
int32_t {name}_self_test(void);

#ifdef __cplusplus
}}
#endif

#endif
"""

HELPERS = {
    "popcount": """\

/* Many processors have an instruction that compilers may only use where they are told to: steps that count are compiled
   twice there, and the processor is asked. */
#if defined(__GNUC__) && defined(__x86_64__) && !defined(__POPCNT__) && !defined(QPSBGD_PORTABLE)
#define COUNTING static inline __attribute__((always_inline))
#define COUNTED(name, parameters, arguments) \\
    static __attribute__((target("popcnt"))) void name##_counted parameters { name arguments; } \\
    static __attribute__((noinline)) void name##_plain parameters { name arguments; }
#define COUNT(name, arguments) \\
    if (__builtin_cpu_supports("popcnt")) name##_counted arguments; else name##_plain arguments
#else
#define COUNTING static
#define COUNTED(name, parameters, arguments)
#define COUNT(name, arguments) name arguments
#endif

#if defined(__GNUC__) && !defined(QPSBGD_PORTABLE) && \\
    (defined(__x86_64__) || defined(__aarch64__) || defined(__ARM_NEON) || defined(__riscv_zbb))
#define POPCOUNT(bits) ((int32_t)BUILTIN(bits))
#endif
#if defined(__GNUC__)
#define INLINED static inline __attribute__((always_inline))
#else
#define INLINED static inline
#endif
""",
    "popcount15(": """\

/* Where a processor has no instruction for it, words are added bit by bit first: sums and carries of three each. */
#define SUM(a, b, c) ((a) ^ (b) ^ (c))
#define CARRY(a, b, c) (((a) & (b)) | (((a) ^ (b)) & (c)))

/* The number of ones in fifteen words, of which the last may be zeros. */
INLINED int32_t popcount15(word a, word b, word c, word d, word e, word f, word g, word h, word i, word j,
                                  word k, word l, word m, word n, word o)
{
#ifdef POPCOUNT
    return POPCOUNT(a) + POPCOUNT(b) + POPCOUNT(c) + POPCOUNT(d) + POPCOUNT(e) + POPCOUNT(f) +
           POPCOUNT(g) + POPCOUNT(h) + POPCOUNT(i) + POPCOUNT(j) + POPCOUNT(k) + POPCOUNT(l) +
           POPCOUNT(m) + POPCOUNT(n) + POPCOUNT(o);
#else
    const word all = (word)-1;
    const word s0 = SUM(a, b, c), s1 = SUM(d, e, f), s2 = SUM(g, h, i), s3 = SUM(j, k, l), s4 = SUM(m, n, o);
    const word c0 = CARRY(a, b, c), c1 = CARRY(d, e, f), c2 = CARRY(g, h, i), c3 = CARRY(j, k, l), c4 = CARRY(m, n, o);
    const word s5 = SUM(s0, s1, s2), c5 = CARRY(s0, s1, s2), c6 = CARRY(s3, s4, s5);
    const word t0 = SUM(c0, c1, c2), t1 = SUM(c3, c4, c5), d0 = CARRY(c0, c1, c2), d1 = CARRY(c3, c4, c5);
    const word d2 = CARRY(t0, t1, c6);
    word ones = SUM(s3, s4, s5), twos = SUM(t0, t1, c6), fours = SUM(d0, d1, d2), eights = CARRY(d0, d1, d2);
    ones -= (ones >> 1) & all / 3;
    twos -= (twos >> 1) & all / 3;
    fours -= (fours >> 1) & all / 3;
    eights -= (eights >> 1) & all / 3;
    ones = (ones & all / 5) + ((ones >> 2) & all / 5) + 2 * ((twos & all / 5) + ((twos >> 2) & all / 5));
    fours = (fours & all / 5) + ((fours >> 2) & all / 5) + 2 * ((eights & all / 5) + ((eights >> 2) & all / 5));
    ones = (ones & all / 17) + ((ones >> 4) & all / 17) + 4 * ((fours & all / 17) + ((fours >> 4) & all / 17));
    ones = (ones & all / 257) + ((ones >> 8) & all / 257);
    return (int32_t)((word)(ones * (all / 65535)) >> (8 * sizeof(word) - 16));
#endif
}
""",
    "popcount(": """\

COUNTING int32_t popcount(word bits)
{
#ifdef POPCOUNT
    return POPCOUNT(bits);
#else
    const word all = (word)-1;
    bits -= (bits >> 1) & all / 3;
    bits = (bits & all / 5) + ((bits >> 2) & all / 5);
    bits = (bits + (bits >> 4)) & all / 17;
    return (int32_t)((word)(bits * (all / 255)) >> (8 * sizeof(word) - 8));
#endif
}
""",
    "add_bits(": """\

/* Puts `count` bits behind the first `place` ones. */
static inline void add_bits(const word *bits, int32_t count, int32_t place, word *to)
{
    const int32_t size = (int32_t)(8 * sizeof(word)), shift = place % size;
    for (to += place / size; count > 0; count -= size, bits++, to++) {
        to[0] |= *bits << shift;
        if (shift + (count < size ? count : size) > size)
            to[1] |= *bits >> (size - shift);
    }
}
""",
    "nearest(": """\

/* The nearest integer, the even one of two. */
static int32_t nearest(float x)
{
    int32_t whole = (int32_t)x;
    const float rest = x - (float)whole;
    if (rest > 0.5f || (rest == 0.5f && whole % 2))
        whole++;
    if (rest < -0.5f || (rest == -0.5f && whole % 2))
        whole--;
    return whole;
}
""",
    "rounded(": """\

/* The nearest integer to a quotient, the even one of two. */
static int32_t rounded(int32_t number, int32_t divisor)
{
    const int32_t whole = number / divisor, rest = number % divisor, twice = 2 * (rest < 0 ? -rest : rest);
    const int32_t away = twice > divisor || (twice == divisor && whole % 2);
    return number < 0 ? whole - away : whole + away;
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
int32_t {name}_run(const {input} input[{prefix}_INPUTS], {output} output[{prefix}_OUTPUTS])
{{
{check}{calls}
    return 0;
}}

int32_t {name}_classify(const {input} input[{prefix}_INPUTS])
{{
    {output} *const output = {answers};
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

# Not under QPSBGD_UNCHECKED: other numbers would read behind the table.
CHECK_ROWS = """\
    for (int32_t k = 0; k < {prefix}_INPUTS; k++)
        if (!(input[k] >= 0.0f && input[k] < {rows}.0f) || input[k] != (float)(int32_t)input[k])
            return -1;
"""

PROGRAM = """\
/* Made by qpsbgd: reads samples, as numbers between blanks, and prints the class and all outputs of each; with the
   argument --self-test it runs the stored samples instead.
   cc -std=c99 -O3 {name}.c {name}_test.c {name}_main.c -o {name}{library} */
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
{helper}
int main(int argc, char **argv)
{{
    double value;
    int32_t count = 0, sample = 0, good = 1;
    int found;
    if (argc > 1 && strcmp(argv[1], "--self-test") == 0) {{
        sample = {name}_self_test();
        if (sample)
            printf("self-test failed: other outputs than stored for sample %ld\\n", (long)sample);
        else
            printf("self-test passed\\n");
        return sample != 0;
    }}
    while ((found = scanf("%lf", &value)) == 1) {{
        good = good && finite(value);
        input[count++] = {read};
        if (count < {prefix}_INPUTS)
            continue;
        count = 0;
        sample++;
        if (!good || {name}_run(input, output) < 0) {{
            fprintf(stderr, "sample %ld: inputs must be {inputs}\\n", (long)sample);
            return 2;
        }}
        printf("%ld: ", (long){name}_classify(input));
        for (int32_t k = 0; k < {prefix}_OUTPUTS; k++)
            printf({show});
        printf("\\n");
    }}
    if (found == EOF && count == 0)
        return 0;
    fprintf(stderr, "sample %ld: %d numbers between blanks are needed, %ld read%s\\n", (long)sample + 1,
            {prefix}_INPUTS, (long)count, found == EOF ? "" : " before something else");
    return 1;
}}
"""

NEAREST = """
/* The nearest integer in the range of inputs, the even one of two. */
static int32_t nearest(double x)
{{
    x = x < {low} ? {low} : x > {high} ? {high} : x;
    const int32_t whole = (int32_t)(x + 128.5) - 128;
    return whole - (whole % 2 && whole - x == 0.5);
}}
"""
