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
    return f"Networks after one pass over MNIST (`benchmarks/deploy.py`):\n\n{lines}"


def deployed_bytes():
    rows = results("deploy")["networks"]
    head = ["bytes", *(row["network"] for row in rows)]
    body = [[what, *(f"{row['bytes'][what]:,}" for row in rows)] for what in rows[0]["bytes"]]
    return markdown(head, body)


def deployed_times():
    """Medians of one call, in columns of batch and load."""
    rows = results("deploy")["times"]
    head = ["µs per call", *(f"batch {row['batch']}{', busy' if row['busy'] else ''}" for row in rows)]
    body = [[name, *(f"{row['microseconds'][name]:.0f}" for row in rows)] for name in rows[0]["microseconds"]]
    first = rows[0]
    ratios = enumerated(f"{ratio:.0f} times faster than {name}" for name, ratio in first["times_faster"].items())
    loads = enumerated(f"{row['load_before']:.1f}" for row in rows if row["batch"] == 1)
    cores = results("deploy")["settings"]["cores"]
    return (
        f'{markdown(head, body)}\n\nNetworks 784-512-512-10; "busy" is beside one more process that keeps a core busy. '
        f"At batch 1 the fully binary network is {ratios}. The load of this machine with {cores} "
        f"cores was {loads} before the measurements; programs take turns, so that it hits all of them. "
        "All run on one thread, except the products of real numbers in a packed model, which numpy's BLAS may spread "
        "over several: on a loaded machine its threads get in each other's way."
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
        "(`benchmarks/runtime.py`)."
    )
