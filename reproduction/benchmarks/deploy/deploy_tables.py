"""The tables of docs/deployment.md, from the files of deploy.py, one per machine."""

from benchmarks.tables import crossed, results

MACHINES = {"deploy_x86_64": "x86-64", "deploy_aarch64": "ARM"}


def deployed_bytes():
    rows = results("deploy_x86_64")["networks"]
    cells = {(what, row["network"]): f"{size:,}" for row in rows for what, size in row["bytes"].items()}
    return crossed("bytes", cells)


def deployed_times():
    """The least time of one call, in columns of machine and batch."""
    least = {
        (row["network"], program, MACHINES[machine], row["batch"]): spent["least"]
        for machine in MACHINES
        for row in results(machine)["times"]
        for program, spent in row["microseconds"].items()
    }
    cells = {(f"{n} | {p}", f"{m}, batch {batch}"): f"{time:.0f}" for (n, p, m, batch), time in least.items()}
    return crossed("network | program", cells)
