"""A layer's QUBO on an annealer's chip: the paper's picture of a minor embedding, and how many fit on a chip."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import dwave.graphs
import numpy as np

from qpsbgd_paper.chip_studies import released_qubo
from qpsbgd_paper.chip_studies.mnist_qubos import ABOUT, FIRST, LAYERS, PRINTED, THIRD, QuboStudy, qubos
from qpsbgd_paper.framework.claims import Judged, with_verdict
from qpsbgd_paper.framework.experiment import Job
from qpsbgd_paper.framework.runs import Result
from qpsbgd_qubo.annealers.chips import Chip
from qpsbgd_qubo.annealers.packing import pack
from qpsbgd_qubo.annealers.tiles import CliqueEmbedding, tiles_of
from qpsbgd_qubo.annealers.virtual_qpu import VirtualChip

FAINT, TEXT = -1, -2
BROKEN = 0.05


def _released_table(released: Mapping[str, Result]) -> dict[str, Any]:
    head = ["layer", "inputs", "rows", "bits per column", "as printed", "couplings", "share of pairs", "qubits"]
    body = [
        [
            name,
            *(f"{row[key]}" for key in ("inputs", "rows", "bits", "inputs", "couplings")),
            f"{2 * row['couplings'] / (row['bits'] * (row['bits'] - 1)):.1%}",
            *((f"{row['qubits']}", f"{row['longest']}") if row["qubits"] else ("no embedding", "–")),
        ]
        for name, row in released.items()
    ]
    return {
        "title": "The released (D) path: one column's QUBO on Pegasus P16",
        "head": [*head, "longest chain"],
        "body": body,
    }


def _released_claims(released: Mapping[str, Result], printed: Sequence[int]) -> list[Judged]:
    """The paper's sentences on size and cost, which fit the released QUBO rather than the printed one."""
    third = next(iter(released.values()))
    several = with_verdict(
        "A bit of the third layer takes several qubits",
        bool(third["qubits"]) and third["qubits"] > third["bits"],
        f"as released, {third['qubits']} qubits for {third['bits']} bits, at most {third['longest']} each; as printed, "
        f"{max(printed)} for each of 4 spins, since the chip has cliques of 4 single qubits",
        number="figure",
    )
    bits, _ = released_qubo.size(*released_qubo.LAYERS["Cora, all nodes"])
    few, _ = released_qubo.size(*released_qubo.LAYERS["Cora, rows of the batch"])
    large = with_verdict(
        "The QUBOs of Cora and PubMed are too large for the chip",
        "cannot tell",
        f"as released, a column has {bits} bits with all nodes as rows, more than the chip's {third['size']} qubits, "
        f"and {few} with those of the batch; as printed it has 10 spins; the paper does not say which rows",
        number="in words",
    )
    growth = [
        with_verdict(
            f"The QUBO formulation scales quadratically with the {words}",
            abs(exponent - 2) < 0.1,
            f"as released, entries of a column's matrix grow with exponent {exponent:.2f}; as printed {printed_as}",
            number="in words",
        )
        for words, exponent, printed_as in (
            ("layer width", _exponent(lambda k: (k, 64)), "with exponent 2"),
            ("batch size", _exponent(lambda k: (16, k)), "they do not depend on it"),
        )
    ]
    updates, columns = 50, 4 + 4 + 2
    spent = {
        reads: updates * columns * (released_qubo.PROGRAMMING + reads * released_qubo.PER_READ)
        for reads in (released_qubo.READS, 1000)
    }
    minute = with_verdict(
        "A run of an MLP takes about a minute of QPU time",
        "not run on hardware",
        f"by the mock's times, {updates} updates of {columns} columns, one submission each, take "
        + " and ".join(f"{seconds:.1f} s at {reads} reads" for reads, seconds in spent.items()),
        number="in words",
    )
    return [several, large, *growth, minute]


def _exponent(shape: Callable[[int], tuple[int, int]]) -> float:
    """By which power of k, between 512 and 1024, the entries of the matrix grow."""
    small, large = (released_qubo.size(*shape(k))[0] for k in (512, 1023))
    return 2 * float(np.log(large / small) / np.log(1023 / 512))


def embed(*, what: str, topology: str, size: int, **settings: Any) -> Result:
    """One picture ("layer" or "chip") or one row of the table ("tiling")."""
    chip = _chip(topology, size, settings.pop("broken", 0.0))
    made: dict[str, Callable[..., Result]] = {"layer": _layer, "chip": _whole, "tiling": _row, "released": _released}
    name = f"{topology.capitalize()} {topology[0].upper()}{size}"
    return {"what": what, "chip": name, **settings, **made[what](chip, **settings)}


@cache
def _chip(topology: str, size: int, broken: float) -> Chip:
    return Chip.of(VirtualChip(topology=topology, size=size, broken=broken))


def _released(chip: Chip, *, name: str, inputs: int, rows: int, seconds: float) -> Result:
    return {"size": len(chip.qubits), **released_qubo.embedded(chip, inputs=inputs, rows=rows, seconds=seconds)}


def _row(chip: Chip, *, spins: int) -> Result:
    whole = len(_chip(chip.topology, chip.shape[0], 0.0).qubits)
    return {**tiling(chip, spins), "broken": 1 - len(chip.qubits) / whole}


def tiling(chip: Chip, spins: int) -> Result:
    """How many cliques of one size a chip holds side by side, qubits per spin, and the share of qubits in use."""
    tiles = tiles_of(chip, spins)
    if not tiles:
        return {"tiles": 0, "mean_chain": 0.0, "longest_chain": 0, "used": 0.0}
    lengths = np.concatenate([tile.lengths for tile in tiles])
    chains = {"mean_chain": float(lengths.mean()), "longest_chain": int(lengths.max())}
    return {"tiles": len(tiles), **chains, "used": float(lengths.sum()) / len(chip.qubits)}


def places(chip: Chip) -> Mapping[int, tuple[float, float]]:
    """Where every working qubit is drawn in a picture of the chip whose longer side is 1."""
    make, layout = (getattr(dwave.graphs, f"{chip.topology}_{what}") for what in ("graph", "layout"))
    spots = layout(make(*chip.shape))
    points = np.array([spots[qubit] for qubit in chip.qubits])
    points -= points.min(0)
    points /= points.max()
    return {qubit: (float(x), float(y)) for qubit, (x, y) in zip(chip.qubits, points, strict=True)}


def _layer(chip: Chip, *, layer: int) -> Result:
    """The problem graph of a layer, or of one column where it is wide, and its tiles in their surroundings."""
    family = qubos(PRINTED, seed=0, updates=(0,))[0][layer]
    shown = family.num_columns if layer == THIRD else 1
    tiles = _central(tiles_of(chip, family.num_spins), chip)[:shown]
    return {
        "columns": shown,
        "lengths": [int(length) for tile in tiles for length in tile.lengths],
        "problem": _problem((family.quadratic.abs() > 1e-6 * family.quadratic.abs().max()).numpy(), shown),
        "embedded": _window(tiles, chip),
    }


def _problem(coupled: np.ndarray[Any, Any], columns: int) -> Result:
    """Spins on a circle for every column, side by side."""
    n = len(coupled)
    angles = np.pi / 2 - 2 * np.pi * np.arange(n) / n + (np.pi / 4 if n == 4 else 0)
    nodes = [(2.9 * c + np.cos(angle), np.sin(angle)) for c in range(columns) for angle in angles]
    pairs = [(i, j) for i in range(n) for j in range(i + 1, n) if coupled[i, j]]
    edges = [(c * n + i, c * n + j) for c in range(columns) for i, j in pairs]
    spins = range(n * columns)
    return {"nodes": _round(nodes), "edges": edges, "colours": [*spins], "labels": [str(spin + 1) for spin in spins]}


def _central(tiles: Sequence[CliqueEmbedding], chip: Chip) -> list[CliqueEmbedding]:
    """The tiles, those in the middle of the chip first."""
    at = places(chip)
    middle = np.mean([*at.values()], axis=0)
    return sorted(
        tiles, key=lambda tile: float(np.linalg.norm(np.mean([at[q] for q in tile.members], axis=0) - middle))
    )


def _window(tiles: Sequence[CliqueEmbedding], chip: Chip) -> Result:
    """Tiles, and all qubits and couplers around them in grey."""
    at = places(chip)
    spin_of = {
        qubit: sum(len(before.lengths) for before in tiles[:number]) + int(spin)
        for number, tile in enumerate(tiles)
        for qubit, spin in zip(tile.qubits.tolist(), tile.spin, strict=True)
    }
    inside = np.array([at[qubit] for qubit in spin_of])
    margin = 0.25 * float((inside.max(0) - inside.min(0)).max()) + 0.5 / chip.shape[0] / 6
    low, high = inside.min(0) - margin, inside.max(0) + margin
    qubits = [qubit for qubit in chip.qubits if all(low <= at[qubit]) and all(at[qubit] <= high)]
    position = {qubit: number for number, qubit in enumerate(qubits)}
    tile_of = {qubit: number for number, tile in enumerate(tiles) for qubit in tile.members}
    edges, colours = [], []
    for a, b in chip.couplers:
        if a in position and b in position:
            used = a in tile_of and tile_of[a] == tile_of.get(b)
            edges.append((position[a], position[b]))
            colours.append((spin_of[a] if spin_of[a] == spin_of[b] else TEXT) if used else FAINT)
    return {
        "nodes": _round(at[qubit] for qubit in qubits),
        "edges": edges,
        "colours": [spin_of.get(qubit, FAINT) for qubit in qubits],
        "edge_colours": colours,
        "labels": [str(spin_of[qubit] + 1) if qubit in spin_of else "" for qubit in qubits],
    }


def _whole(chip: Chip, *, spins: int, columns: int) -> Result:
    """All qubits of a chip by the column of the first submission that has them."""
    sheets = pack([spins] * columns, {spins: tiles_of(chip, spins)})
    column_of = {
        qubit: column for column, tile in zip(sheets[0].columns, sheets[0].tiles, strict=True) for qubit in tile.members
    }
    at = places(chip)
    picture: Result = {"nodes": _round(at[qubit] for qubit in chip.qubits)}
    picture["colours"] = [column_of.get(qubit, FAINT) for qubit in chip.qubits]
    counts = {"submissions": len(sheets), "placed": len(sheets[0].columns), "used": len(column_of) / len(chip.qubits)}
    return {**counts, "picture": picture}


def _layer_figure(result: Mapping[str, Any]) -> dict[str, Any]:
    lengths, name = result["lengths"], LAYERS[result["layer"]]
    n = len(lengths) // result["columns"]
    chain = f"{min(lengths)}" if min(lengths) == max(lengths) else f"{min(lengths)} to {max(lengths)}"
    columns = f"{result['columns']} columns of {n} spins" if result["columns"] > 1 else f"one column of {n} spins"
    problem = {"title": f"{name}: {columns}", "size": 15, **result["problem"]}
    title = f"on {result['chip']}: {chain} qubit{'s' if max(lengths) > 1 else ''} per spin"
    embedded = {"title": title, "size": 9 if n > 4 else 13, **result["embedded"]}
    caption = (
        "Left: spins and their couplings. Right: the chip around the embedding; a chain has its spin's colour and "
        "number, strong lines are the couplers in use between chains, all else is faint."
    )
    text = {"title": f"QUBO of the {name} and its embedding", "caption": caption}
    return {"name": name.replace(" ", "-"), **text, "kind": "graphs", "panels": [problem, embedded]}


def _chip_figure(chips: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    panels = [{"title": f"{chip['chip']}: {chip['placed']} columns", "size": 2.4, **chip["picture"]} for chip in chips]
    used = " and ".join(f"{chip['used']:.0%} of {chip['chip']}" for chip in chips)
    title = f"One submission: a layer with {chips[0]['spins']} inputs and {chips[0]['columns']} columns"
    caption = (
        f"Every point is a qubit, {used} in use; the qubits of a column have one colour, free ones are small and "
        "grey. Colours repeat."
    )
    return {"name": "chip", "title": title, "caption": caption, "kind": "graphs", "panels": panels}


def _round(points: Iterable[Sequence[float]]) -> list[tuple[float, float]]:
    return [(round(float(x), 3), round(float(y), 3)) for x, y in points]


@dataclass(frozen=True)
class Embedding(QuboStudy):
    """Problem graphs beside their embeddings, a whole chip of columns, and a table of what fits."""

    name = "embedding"
    title = "Minor embedding on an annealer's chip"
    about = (
        f"{ABOUT} Pictures show the QUBO as printed at the first update. Every column of a layer goes on a clique of "
        "chains, found once per chip and size, so that no column or update needs an embedding of its own. The authors' "
        "released (D) path has another QUBO, with a bit for every product of a row and for its sign: one such problem "
        "per column, update and batch, each embedded by minorminer."
    )
    paper = (
        "Figure: the third layer's problem graph, and its embedding on Pegasus with several qubits per spin. In words: "
        "the QUBO formulation scales quadratically in batch size and layer width; Cora's and PubMed's QUBOs are too "
        "large for Advantage 6.1; a run of an MLP takes about a minute of QPU time."
    )
    work = staticmethod(embed)
    small = {
        "pegasus": 4,
        "zephyr": 2,
        "sizes": (4,),
        "columns": 3,
        "released": tuple(released_qubo.LAYERS)[:1],
        "seconds": 20.0,
    }
    seeds: int = 1
    pegasus: int = 16
    zephyr: int = 15
    sizes: tuple[int, ...] = (4, 10, 16, 32)
    columns: int = 84
    released: tuple[str, ...] = tuple(released_qubo.LAYERS)
    seconds: float = 300.0

    def jobs(self) -> Sequence[Job]:
        chips = [{"topology": "pegasus", "size": self.pegasus}, {"topology": "zephyr", "size": self.zephyr}]
        pictures: list[Job] = [{"what": "layer", **chips[0], "layer": layer} for layer in (THIRD, FIRST)]
        pictures += [{"what": "chip", **chip, "spins": 16, "columns": self.columns} for chip in chips]
        rows = [
            {"what": "tiling", **chip, "broken": broken, "spins": spins}
            for chip in chips
            for broken in (0.0, BROKEN)
            for spins in self.sizes
        ]
        for name in self.released:
            inputs, batch = released_qubo.LAYERS[name]
            shape = {"inputs": inputs, "rows": batch, "seconds": self.seconds}
            rows.append({"what": "released", **chips[0], "name": name, **shape})
        return pictures + rows

    def presentation(self, results: Sequence[Result]) -> dict[str, Any]:
        layers = {result["layer"]: result for result in results if result["what"] == "layer"}
        chips = [result for result in results if result["what"] == "chip"]
        rows = [result for result in results if result["what"] == "tiling"]
        head = ["chip", "broken qubits", "spins per column", "columns at once", "qubits per spin", "longest chain"]
        shown = ("{chip}", "{broken:.0%}", "{spins}", "{tiles}", "{mean_chain:.2f}", "{longest_chain}", "{used:.0%}")
        body = [[cell.format_map(row) for cell in shown] for row in rows]
        title = "Columns that one submission holds, each on a clique of its own"
        figures = [*(_layer_figure(layer) for layer in layers.values()), _chip_figure(chips)]
        released = {row["name"]: row for row in results if row["what"] == "released"}
        claims = [
            *_released_claims(released, layers[THIRD]["lengths"]),
            with_verdict(
                f"All {self.columns} columns of a layer with 16 inputs fit in one submission",
                all(chip["submissions"] == 1 for chip in chips),
                ", ".join(f"{chip['submissions']} on {chip['chip']}" for chip in chips),
                source="aim",
            ),
        ]
        table = {"title": title, "head": [*head, "qubits in use"], "body": body}
        return {"figures": figures, "tables": [_released_table(released), table], "claims": claims}
