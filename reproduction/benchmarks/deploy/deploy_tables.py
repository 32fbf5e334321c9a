"""What docs/deployment.md and docs/microcontrollers.md show: tables of deploy.py and microcontrollers.py, a figure."""

from matplotlib.figure import Figure

from benchmarks.tables import cross_table, label_axes, results
from qpsbgd_paper.report.styles import COLOURS, RED
from qpsbgd_paper.report.tables import pipes

MACHINES = {"deploy_x86_64": "x86-64", "deploy_aarch64": "ARM"}


def deployed_bytes():
    rows = results("deploy_x86_64")["networks"]
    cells = {(what, row["network"]): f"{size:,}" for row in rows for what, size in row["bytes"].items()}
    return cross_table("bytes", cells)


def deployed_times():
    """The least time of one call, in columns of machine and batch."""
    cells = {
        ((row["network"], program), f"{machine}, batch {row['batch']}"): f"{spent['least']:.0f}"
        for file, machine in MACHINES.items()
        for row in results(file)["times"]
        for program, spent in row["microseconds"].items()
    }
    return cross_table(("network", "program"), cells)


def microcontrollers():
    """Flash, RAM, stack and instructions on the M4; bold where one bit takes more than int8."""
    rows = [row for row in _by_network() if row["core"] == "m4"]
    int8 = {row["network"]: row for row in rows if row["code"] == "int8, CMSIS-NN"}
    cells = {}
    for row in rows:
        for what in ("flash", "RAM", "stack", "instructions"):
            text = f"{row[what]:,}" if what != "instructions" else _thousands(row[what])
            more = row["code"] == "one bit" and row[what] > int8.get(row["network"], row)[what]
            cells[(row["network"], row["code"]), what] = f"**{text}**" if more else text
    return cross_table(("network", "code"), cells)


def _by_network():
    """The rows network by network, one bit first."""
    rows = results("microcontrollers")["rows"]
    order = list(dict.fromkeys(row["network"] for row in rows if row["code"] == "one bit"))
    return sorted(rows, key=lambda row: (order.index(row["network"]), row["code"] != "one bit", row["code"][0] != "i"))


def _thousands(count):
    return f"{count / 1e6:.2f}M" if count >= 1e6 else f"{count / 1e3:.1f}k"


def resnet8_accuracy():
    """Accuracy of ResNet-8 on CIFAR-10 by bits per weight."""
    names = {0: "float", 1: "one bit", 2: "two bits", 4: "four bits"}
    body = []
    for row in results("mlperf_training")["rows"]:
        name = names[row["bits"]] + (f", first and last layer {names[row['ends']]}" if "ends" in row else "")
        body.append([name, f"{100 * row['score']:.1f}"])
    return pipes(["weights of ResNet-8", "CIFAR-10, test accuracy, %"], body)


def microcontrollers_figure():
    """Flash, RAM and instructions on the M4, one bit beside int8."""
    rows = {(row["network"], row["code"]): row for row in _by_network() if row["core"] == "m4"}
    names = list(dict.fromkeys(name for name, _ in rows))[::-1]
    figure = Figure(figsize=(9.3, 2.9), layout="constrained")
    panels = {"flash": ("flash, KB", 1024), "RAM": ("RAM, KB", 1024), "instructions": ("instructions, millions", 1e6)}
    for axes, (what, (title, unit)) in zip(figure.subplots(1, 3, sharey=True), panels.items(), strict=True):
        one_bit, int8 = ([rows[name, code][what] / unit for name in names] for code in ("one bit", "int8, CMSIS-NN"))
        axes.hlines(range(len(names)), one_bit, int8, color=COLOURS["bc-sgd"], linewidth=1)
        axes.plot(int8, range(len(names)), "o", color=COLOURS["bc-sgd"], label="int8, CMSIS-NN")
        axes.plot(one_bit, range(len(names)), "o", color=RED, label="one bit")
        label_axes(axes, title, log="x")
        axes.set_yticks(range(len(names)), names)
    figure.legend(*figure.axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=2)
    return figure
