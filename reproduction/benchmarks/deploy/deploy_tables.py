"""The tables of docs/deployment.md, from the files of deploy.py, one per machine, and runtime.json."""

from benchmarks.tables import crossed, enumerated, results

MACHINES = {"deploy_x86_64": "x86-64", "deploy_aarch64": "ARM"}
FIRST, LIMIT = "deploy_x86_64", 2
"""Whose classes and bytes are shown; and the times of onnxruntime in float32 that a program may take."""


def deployed_classes():
    """One sentence per network: accuracy, and images with another class than torch's."""
    parts = []
    for row in results(FIRST)["networks"]:
        others = row["other_classes"]
        if any(others.values()):
            differing = enumerated(f"{count} ({target})" for target, count in others.items())
            agreement = f"other classes than torch's for {differing} of them"
        else:
            agreement = f"torch's classes for all of them from {enumerated(others)}"
        parts.append(
            f"{row['network']}: {100 * row['test_accuracy']:.1f} % of {row['images']:,} test images, {agreement}."
        )
    lines = "\n".join(f"- {part}" for part in parts)
    return f"Networks after one pass over MNIST (`benchmarks/deploy/deploy.py`):\n\n{lines}"


def deployed_bytes():
    rows = results(FIRST)["networks"]
    cells = {(what, row["network"]): f"{size:,}" for row in rows for what, size in row["bytes"].items()}
    return crossed("bytes", cells)


def deployed_times():
    """The least time of one call, in columns of machine and batch."""
    found = {machine: results(machine) for machine in MACHINES}
    least = {
        (row["network"], program, MACHINES[machine], row["batch"]): spent["least"]
        for machine, one in found.items()
        for row in one["times"]
        for program, spent in row["microseconds"].items()
    }
    cells = {(f"{n} | {p}", f"{m}, batch {batch}"): f"{time:.0f}" for (n, p, m, batch), time in least.items()}
    made = enumerated(
        f"{MACHINES[machine]}: {one['settings']['clock']}, load {one['times'][0]['load_before']:.1f} on "
        f"{one['settings']['cores']} cores, C with {one['settings']['C flags']}"
        for machine, one in found.items()
    )
    return (
        f"{crossed('network | program', cells)}\n\nMicroseconds per call on one thread, the least of many while "
        f"programs take turns ({made}); C takes one image after the other; "
        f"onnxruntime with the same network, its weights as float32 or quantised to 8 bits. {_verdict(least)}"
    )


def runtime_figures():
    """One sentence on what the runtime takes, and how soon it answers."""
    found = results("runtime")
    sizes, first = found["bytes"], found["first_answer"]
    seconds = {
        case: f"{times['wall_s']:.2f} s ({times['cpu_s']:.2f} s of processor time)" for case, times in first.items()
    }
    return (
        f"The wheel has {sizes['wheel'] / 1e6:.1f} MB; unpacked, with safetensors, it takes "
        f"{sizes['beside numpy'] / 1e6:.1f} MB beside numpy. From the start of Python to the first answer of a packed "
        f"784-512-512-10 it takes {seconds['runtime']}, of which Python and numpy alone are {seconds['numpy alone']}; "
        f"with torch it is {seconds['torch and qpsbgd']}. The load was {found['load']:.1f} on this machine "
        "(`benchmarks/deploy/runtime.py`)."
    )


def _verdict(least):
    """Where a program takes longer than it should, and where C is behind at a batch that it is not made for."""
    ratios = {
        (network, program, *where): time / least[(network, "onnxruntime, float32", *where)]
        for (network, program, *where), time in least.items()
        if program in ("packed", "C")
    }
    slow = [
        f"{program}, {network}, at batch {batch} on {machine} ({ratio:.1f} times)"
        for (network, program, machine, batch), ratio in ratios.items()
        if ratio > LIMIT and (program, batch) != ("C", 100)
    ]
    goal = f"more than {LIMIT} times as long as onnxruntime in float32: packed at both batches, C at batch 1"
    verdict = f"{enumerated(slow)} take {goal}." if slow else f"Nothing takes {goal}."
    behind = max(ratio for (_, program, _, batch), ratio in ratios.items() if (program, batch) == ("C", 100))
    return f"{verdict} C at batch 100 is 100 calls, and up to {behind:.1f} times as long."
