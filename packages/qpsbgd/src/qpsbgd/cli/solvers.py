"""`qpsbgd solvers`."""

from rich.table import Table
from rich.text import Text

from qpsbgd.cli.console import console


def solvers() -> None:
    """List the solvers, whether each can be used here and, if not, what is missing."""
    from qpsbgd_qubo.solvers.registry import SOLVERS, solver_class

    table = Table(box=None, pad_edge=False)
    for title in ("solver", "usable", "what it does, or what is missing"):
        table.add_column(title, no_wrap=title != "what it does, or what is missing", overflow="fold")
    for name in SOLVERS:
        try:
            kind = solver_class(name)
        except ImportError as error:
            table.add_row(Text(name, "bold"), _usable(False), Text(str(error)))
            continue
        variants = kind.variants()
        usable = not all(variants.values())
        missing = "" if usable or len(variants) > 1 else next(iter(variants.values()))
        table.add_row(Text(name, "bold"), _usable(usable), Text(missing or (kind.__doc__ or "").splitlines()[0]))
        for variant, obstacle in variants.items() if len(variants) > 1 else ():
            table.add_row("", _usable(not obstacle), Text(f"{variant}: {obstacle}" if obstacle else variant))
    console.print(table)


def _usable(yes: bool) -> Text:
    return Text("yes", "green") if yes else Text("no", "red")
