"""Tables as a notebook shows them."""

from collections.abc import Iterable, Sequence
from html import escape

from qpsbgd_qubo.files.visible import visible


def html_table(head: Sequence[str], rows: Iterable[Sequence[str]], *, left: int = 1, notes: Sequence[str] = ()) -> str:
    """Lines of cells as an HTML table: the first `left` columns flush left, all others flush right; notes below it."""

    def line(cells: Sequence[str], tag: str) -> str:
        sides = ("left" if column < left else "right" for column in range(len(cells)))
        made = (
            f'<{tag} style="text-align: {side}">{escape(visible(cell))}</{tag}>'
            for cell, side in zip(cells, sides, strict=True)
        )
        return f"<tr>{''.join(made)}</tr>"

    body = "".join(line(row, "td") for row in rows)
    below = "".join(f"<p>{escape(visible(note))}</p>" for note in notes)
    return f"<table><thead>{line(head, 'th')}</thead><tbody>{body}</tbody></table>{below}"
