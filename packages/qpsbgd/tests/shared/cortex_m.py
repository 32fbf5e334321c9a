"""Generated C on an emulated Cortex-M: compiled strictly, run on samples under QEMU, and measured.

    flash         code, tables and the library functions they call, without the program around them
    RAM           static buffers, as linked
    stack         deepest use by NAME_run, from a painted stack
    instructions  per NAME_run, one number per sample

SysTick counts instructions: under `-icount shift=0` QEMU's clock advances by 1 ns per instruction, and the processor
clocks of the boards tick once in 31.25 to 50 of them. Every run first times a loop of known length. QEMU models neither
pipeline, flash nor cache: instructions are not cycles.
"""

import re
import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

TOOLS = ("arm-none-eabi-gcc", "arm-none-eabi-size", "qemu-system-arm")
MISSING = [tool for tool in TOOLS if shutil.which(tool) is None]
INSTALL = "apt-get install gcc-arm-none-eabi libnewlib-arm-none-eabi qemu-system-arm"
WARNINGS = ("-Wall", "-Wextra", "-Wconversion", "-Wshadow", "-Wdouble-promotion", "-pedantic")
LOOP = 100_000
TYPES = {"int8_t": "i1", "uint8_t": "u1", "int16_t": "<i2", "int32_t": "<i4", "int64_t": "<i8", "float": "<f4"}

needs_cortex_m = pytest.mark.skipif(bool(MISSING), reason=f"{', '.join(MISSING)} not found: {INSTALL}")


@dataclass(frozen=True)
class Core:
    """A processor, the board that QEMU emulates, its memories, and the instructions per tick of SysTick."""

    flags: tuple[str, ...]
    machine: str
    flash: int = 0
    ram: int = 0x20000000
    size: int = 4 << 20
    tick: float = 40.0


CORES = {
    "m3": Core(("-mcpu=cortex-m3",), "mps2-an385"),
    "m4": Core(("-mcpu=cortex-m4", "-mfpu=fpv4-sp-d16", "-mfloat-abi=hard"), "mps2-an386"),
    "m33": Core(
        ("-mcpu=cortex-m33", "-mfpu=fpv5-sp-d16", "-mfloat-abi=hard"), "mps2-an505", 0x10000000, 0x38000000, tick=50
    ),
    "m55": Core(("-mcpu=cortex-m55", "-mfloat-abi=hard"), "mps3-an547", 0, 0x21000000, 512 << 10, tick=31.25),
}


@dataclass(frozen=True)
class Run:
    """What a network gave and took on a core."""

    outputs: np.ndarray
    classes: list[int]
    instructions: list[float]
    stack: int
    sections: dict[str, int]

    @property
    def flash(self):
        """Bytes of code, constants and what initialises variables."""
        return sum(self.sections[name] for name in (".text", ".rodata", ".data"))

    @property
    def ram(self):
        """Bytes of static memory."""
        return self.sections[".data"] + self.sections[".bss"]


def run(core, header, sources, rows, *, flags=("-O2",), libraries=(), strict=True):
    """Run NAME_run of NAME.h on samples, and NAME_self_test where NAME_test.c is among the sources.

    Args:
        core: One of CORES.
        header: NAME.h, which declares NAME_run and NAME_classify as `to_c` does.
        sources: The C files of the network.
        rows: Samples (B, …) as torch takes them; they are converted to what the header asks for.
        flags: The compiler's for the network alone.
        libraries: What is linked besides libm.
        strict: Whether warnings are errors.
    """
    header, core = Path(header), CORES[core]
    with tempfile.TemporaryDirectory() as temporary:
        work, name, text = Path(temporary), header.stem, header.read_text()
        ((takes, gives),) = re.findall(rf"{name}_run\(const (\w+) input\[\w+\], (\w+) output", text)
        outputs = int(re.search(rf"define {name.upper()}_OUTPUTS (\d+)", text)[1])
        rows = _inputs(rows.reshape(len(rows), -1), takes, text)
        rows.tofile(work / "samples.bin")
        (work / "samples.s").write_text(SAMPLES.format(work / "samples.bin"))
        (work / "board.ld").write_text(LINKER_SCRIPT.format(core=core))
        (work / "main.c").write_text(f'#include "{name}.h"\nextern const {takes} samples[];\n{PROGRAM}')
        (work / "stub.c").write_text(
            f'#include "{name}.h"\nint32_t {name}_run(const {takes} *i, {gives} *o) {{ o[0] = i[0]; return 0; }}\n'
            f"int32_t {name}_classify(const {takes} *i) {{ return i[0] > 0; }}\n"
            f"int32_t {name}_self_test(void) {{ return 0; }}\n"
        )
        gcc = ("arm-none-eabi-gcc", *core.flags, "-mthumb", "-ffunction-sections", "-fdata-sections")
        gcc += (f"-I{header.parent}",)
        defines = {"OUTPUT": gives, "RUN": f"{name}_run", "CLASSIFY": f"{name}_classify", "LOOP": f"{LOOP}u"}
        defines |= {"INPUTS": f"{rows.shape[1]}u", "OUTPUTS": f"{outputs}u", "COUNT": f"{len(rows)}u"}
        if any(Path(source).name == f"{name}_test.c" for source in sources):
            defines["SELF_TEST"] = f"{name}_self_test"
        around = ("-std=gnu11", "-O1", "-mgeneral-regs-only", *(f"-D{key}={value}" for key, value in defines.items()))
        strictly = ("-std=c99", *WARNINGS, *(["-Werror"] if strict else []), *flags)
        parts = {"main": (work / "main.c", around), "samples": (work / "samples.s", ()), "stub": (work / "stub.c", ())}
        parts |= {f"part{number}": (source, strictly) for number, source in enumerate(sources)}
        for part, (source, options) in parts.items():
            _done(*gcc, *options, "-c", source, "-o", work / f"{part}.o")
        network = [work / f"part{number}.o" for number in range(len(sources))]
        with_network = _linked(gcc, work, "network", [*network, *libraries])
        around = _linked(gcc, work, "stub", [work / "stub.o"])
        said = _done(
            *("qemu-system-arm", "-M", core.machine, "-display", "none", "-monitor", "none", "-serial", "none"),
            *("-icount", "shift=0", "-semihosting-config", "enable=on,target=native", "-kernel", work / "network.elf"),
        )
    lines = [line.split() for line in said.splitlines() if line.strip()]
    if lines[-1] != ["done"]:
        raise RuntimeError(f"the program ended early: {lines[-3:]}")
    told = {what: [line[1] for line in lines[:-1] if line[0] == what] for what, _ in lines[:-1]}
    number = {what: [int(word) for word in words] for what, words in told.items() if what != "output"}
    (overhead,), (loop,) = number["overhead"], number["loop"]
    if abs((loop - overhead) * core.tick / (2 * LOOP) - 1) > 0.002:
        raise RuntimeError(f"a loop of {2 * LOOP} instructions counts {(loop - overhead) * core.tick}")
    if any(number["refused"]):
        raise RuntimeError(f"{name}_run refuses samples")
    if number.get("failed", [0]) != [0]:
        raise RuntimeError(f"{name}_self_test fails at sample {number['failed'][0]}")
    values = np.frombuffer(b"".join(map(bytes.fromhex, told["output"])), TYPES[gives])
    return Run(
        outputs=values.reshape(len(rows), outputs),
        classes=number["class"],
        instructions=[(ticks - overhead) * core.tick for ticks in number["ticks"]],
        stack=number["stack"][0],
        sections={name: with_network[name] - around[name] for name in (".text", ".rodata", ".data", ".bss")},
    )


def _inputs(rows, kind, header):
    """Samples in the numbers that a header asks for: real ones, whole ones that count a step, or signs."""
    if kind != "float":
        step = re.search(r"define \w+_INPUT_STEP (\S+)", header)
        whole = np.rint(rows / np.float32(step[1])) if step else np.where(rows >= 0, 1, -1)
        rows = whole.clip(np.iinfo(TYPES[kind]).min, np.iinfo(TYPES[kind]).max)
    return np.ascontiguousarray(rows, TYPES[kind])


def _linked(gcc, work, name, parts):
    """Link a firmware; the bytes of its sections."""
    options = (
        "-nostartfiles",
        "--specs=nano.specs",
        "--specs=nosys.specs",
        "-Wl,--gc-sections",
        "-Wl,--no-warn-rwx-segments",
    )
    options += (f"-T{work / 'board.ld'}",)
    _done(*gcc, *options, work / "main.o", work / "samples.o", *parts, "-lm", "-o", work / f"{name}.elf")
    lines = _done("arm-none-eabi-size", "-A", work / f"{name}.elf").splitlines()
    return {words[0]: int(words[1]) for words in map(str.split, lines) if len(words) == 3 and words[1].isdigit()}


def _done(*arguments):
    """What a program printed; its errors are raised."""
    done = subprocess.run([*map(str, arguments)], capture_output=True, text=True, stdin=subprocess.DEVNULL, timeout=600)
    if done.returncode:
        raise RuntimeError(f"{arguments[0]} ended with {done.returncode}:\n{(done.stdout + done.stderr)[-3000:]}")
    return done.stdout + done.stderr


SAMPLES = """\
.section .rodata.samples,"a"
.balign 8
.global samples
samples:
.incbin "{}"
.section .note.GNU-stack
"""

LINKER_SCRIPT = """\
MEMORY
{{
    FLASH (rx) : ORIGIN = {core.flash:#x}, LENGTH = {core.size:#x}
    RAM (rw) : ORIGIN = {core.ram:#x}, LENGTH = 4M
}}
ENTRY(reset)
SECTIONS
{{
    .text : {{ KEEP(*(.vectors)) *(.text .text.*) . = ALIGN(4); }} > FLASH
    .rodata : {{ *(.rodata .rodata.*) . = ALIGN(4); }} > FLASH
    .ARM.exidx : {{ *(.ARM.exidx*) }} > FLASH
    .data : {{ data_begin = .; *(.data .data.*) . = ALIGN(4); data_end = .; }} > RAM AT > FLASH
    data_load = LOADADDR(.data);
    .bss (NOLOAD) : {{ bss_begin = .; *(.bss .bss.* COMMON) . = ALIGN(8); bss_end = .; }} > RAM
    .stack (NOLOAD) : {{ stack_bottom = .; . += 64K; stack_top = .; }} > RAM
}}
"""

PROGRAM = """\
#include <stdint.h>

extern uint32_t data_begin, data_end, data_load, bss_begin, bss_end, stack_bottom, stack_top;

static int32_t semihosting(int32_t call, const void *argument)
{
    register int32_t r0 __asm__("r0") = call;
    register const void *r1 __asm__("r1") = argument;
    __asm__ volatile("bkpt 0xab" : "+r"(r0) : "r"(r1) : "memory");
    return r0;
}

static void show(const char *text) { semihosting(0x04, text); }

static void leave(uint32_t status)
{
    const uint32_t block[2] = {0x20026, status};
    semihosting(0x20, block);
    for (;;) {}
}

static void show_bytes(const char *what, const void *from, uint32_t count)
{
    static char line[4096];
    const uint8_t *bytes = from;
    uint32_t at = 0;
    show(what);
    for (uint32_t k = 0; k < count; k++) {
        line[at++] = "0123456789abcdef"[bytes[k] >> 4];
        line[at++] = "0123456789abcdef"[bytes[k] & 15];
        if (at > sizeof line - 4) {
            line[at] = 0;
            show(line);
            at = 0;
        }
    }
    line[at++] = '\\n';
    line[at] = 0;
    show(line);
}

static void show_number(const char *what, uint64_t number)
{
    char digits[24], *at = digits + sizeof digits;
    *--at = 0;
    *--at = '\\n';
    do
        *--at = (char)('0' + number % 10);
    while (number /= 10);
    show(what);
    show(at);
}

/* SysTick counts down from 2^24 - 1 at the processor's clock; its exception counts how often it began again. */
#define SYSTICK ((volatile uint32_t *)0xe000e010)
static volatile uint32_t turns;
static void tick(void) { turns++; }

static void start(void)
{
    SYSTICK[0] = 0;
    SYSTICK[1] = 0xffffff;
    SYSTICK[2] = 0;
    turns = 0;
    SYSTICK[0] = 7;
    while (!SYSTICK[2]) {} /* it takes its first number with the next tick */
}

static uint64_t ticks(void)
{
    uint32_t left, before;
    do {
        before = turns;
        left = SYSTICK[2];
    } while (!left || before != turns);
    const uint64_t found = ((uint64_t)before << 24) + (0xffffff - left);
    SYSTICK[0] = 0;
    return found;
}

/* Two instructions per turn. */
static void __attribute__((noinline)) loop(uint32_t count)
{
    __asm__ volatile(".p2align 2\\n1: subs %0, %0, #1\\n bne 1b" : "+r"(count) : : "cc");
}

static void __attribute__((noinline)) paint(void)
{
    uint32_t *end = __builtin_frame_address(0);
    for (uint32_t *at = &stack_bottom; at < end - 16; at++)
        *at = 0xa5c3f00du;
}

static uint32_t __attribute__((noinline)) painted(void)
{
    uint32_t *at = &stack_bottom;
    while (at < &stack_top && *at == 0xa5c3f00du)
        at++;
    return (uint32_t)((uint8_t *)&stack_top - (uint8_t *)at);
}

static OUTPUT output[OUTPUTS];

static void run_all(void)
{
    start();
    show_number("overhead ", ticks());
    start();
    loop(LOOP);
    show_number("loop ", ticks());

    uint32_t *here;
    __asm__ volatile("mov %0, sp" : "=r"(here));
    paint();
    RUN(samples, output);
    show_number("stack ", painted() - (uint32_t)((uint8_t *)&stack_top - (uint8_t *)here));
    for (uint32_t k = 0; k < COUNT; k++) {
        start();
        const int32_t status = RUN(samples + k * INPUTS, output);
        const uint64_t spent = ticks();
        show_number("ticks ", spent);
        show_number("refused ", status < 0);
        show_number("class ", (uint32_t)CLASSIFY(samples + k * INPUTS));
        show_bytes("output ", output, sizeof output);
    }
#ifdef SELF_TEST
    show_number("failed ", (uint32_t)SELF_TEST());
#endif
    show("done\\n");
    leave(0);
}

static void fault(void)
{
    show("fault\\n");
    leave(1);
}

void reset(void)
{
    uint32_t *from = &data_load;
    for (uint32_t *to = &data_begin; to < &data_end; to++)
        *to = *from++;
    for (uint32_t *to = &bss_begin; to < &bss_end; to++)
        *to = 0;
    *(volatile uint32_t *)0xe000ed88 |= 0xfu << 20; /* the floating point unit, where there is one */
    __asm__ volatile("dsb\\n isb");
    run_all();
}

__attribute__((section(".vectors"), used)) static const struct {
    uint32_t *stack;
    void (*handlers[15])(void);
} vectors = {&stack_top, {reset, fault, fault, fault, fault, fault, fault, 0, 0, 0, fault, fault, 0, fault, tick}};
"""
