"""The tables of docs/deployment.md, from deploy.json and runtime.json."""

from tables import enumerated, markdown, results


def deployed_classes():
    """One sentence per network: accuracy, and images with another class than torch's."""
    parts = []
    for row in results("deploy")["networks"]:
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
    rows = results("deploy")["networks"]
    head = ["bytes", *(row["network"] for row in rows)]
    body = [[what, *(f"{row['bytes'][what]:,}" for row in rows)] for what in rows[0]["bytes"]]
    return markdown(head, body)


def deployed_times():
    """The least time of one call, in columns of batch and load."""
    found = results("deploy")
    rows, settings = found["times"], found["settings"]
    columns = sorted({(row["busy"], row["batch"]) for row in rows})
    head = ["network", "program", *(f"batch {batch}{', busy' if busy else ''}" for busy, batch in columns)]
    least = {}
    for row in rows:
        for program, spent in row["microseconds"].items():
            least.setdefault((row["network"], program), {})[row["busy"], row["batch"]] = spent["least"]
    body = [[*key, *(f"{spent[column]:.0f}" for column in columns)] for key, spent in least.items()]
    loads = enumerated(f"{row['load_before']:.1f}" for row in (rows[0], rows[-1]))
    return (
        f"{markdown(head, body)}\n\nMicroseconds per call on one thread, the least of many while programs take turns; "
        f"C with {settings['C flags']}, one image after the other; onnxruntime with the same network, its weights as "
        'float32 or quantised to 8 bits. "busy" is beside one more process that keeps a core busy. The load of this '
        f"machine with {settings['cores']} cores was {loads} at the beginning and at the end. {_verdict(least)}"
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
    """Where a program is slower than onnxruntime with float32 weights allows."""
    slower = []
    for (network, program), spent in least.items():
        for (busy, batch), time in spent.items():
            ratio = time / least[network, "onnxruntime, float32"][busy, batch]
            if program in ("packed", "C") and not busy and ratio > (1 if batch == 1 else 2):
                slower.append(f"{program}, {network}, at batch {batch} ({ratio:.1f} times its time)")
    goal = "than onnxruntime in float32 at batch 1, or takes more than twice its time at batch 100"
    return f"Slower {goal}: {enumerated(slower)}." if slower else f"No program is slower {goal}."
