"""The tables of docs/deployment.md, from the files of deploy.py, one per machine."""

from benchmarks.tables import crossed, results

MACHINES = {"deploy_x86_64": "x86-64", "deploy_aarch64": "ARM"}


def deployed_bytes():
    rows = results("deploy_x86_64")["networks"]
    cells = {(what, row["network"]): f"{size:,}" for row in rows for what, size in row["bytes"].items()}
    return crossed("bytes", cells)


def deployed_times():
    """The least time of one call, in columns of machine and batch."""
    cells = {
        ((row["network"], program), f"{machine}, batch {row['batch']}"): f"{spent['least']:.0f}"
        for file, machine in MACHINES.items()
        for row in results(file)["times"]
        for program, spent in row["microseconds"].items()
    }
    return crossed(("network", "program"), cells)
