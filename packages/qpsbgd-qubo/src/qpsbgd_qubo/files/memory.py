"""Memory that is asked for only where there is enough: Linux grants more than it has, and ends the process later."""

import contextlib
import re
from pathlib import Path

SMALL = 2**30  # bytes up to which nobody looks


def check_memory(needed: int, what: str, instead: str) -> None:
    """Raise MemoryError where the machine clearly lacks this many bytes for `what`, with what to do `instead`."""
    if needed > SMALL and needed > (free := free_memory()):
        raise MemoryError(f"{what} needs {needed / 1e9:.3g} GB of memory, and {free / 1e9:.3g} GB are free; {instead}")


def free_memory() -> float:
    """Bytes that this process may still get; infinity where the system does not tell."""
    free = float("inf")
    with contextlib.suppress(OSError):
        text = Path("/proc/meminfo").read_text()
        free = sum(1024.0 * int(number) for number in re.findall(r"^(?:MemAvailable|SwapFree): +(\d+) kB", text, re.M))
    with contextlib.suppress(OSError, ValueError):  # "max" without a limit
        free = min(free, float(int(Path("/sys/fs/cgroup/memory.max").read_text())))
    return free
