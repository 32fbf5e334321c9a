"""Theorem 1 on problems so small that all spins can be tried: do fixed points exist, and are they reached?"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from qpsbgd.nn import sign
from qpsbgd.projections.system import penalty_of
from qpsbgd_paper.framework.claims import Judged, Source, Verdict, with_verdict
from qpsbgd_paper.framework.experiment import Job, Study
from qpsbgd_paper.framework.runs import Result

FORMS = {"printed": "as printed", "kappa": "κ = 1", "spins": "nearest spins"}
"""The map Π: the equation as printed, with v scaled to κ = 1, and `Spins`, the ±1 vector nearest to the ridge's."""

FUNCTIONS = ("linear", "quadratic")
RATES = (0.01, 0.1, 1.0)  # step sizes α; starts are uniform in [−1, 1]

STEPS = {0.01: 1500, 0.1: 600, 1.0: 300}  # steps of a walk, by rate: many times the way across

DECAYS = {"constant": "α", "decay": "α/√t"}  # both sums diverge, as the theorem wants

SIZES = tuple((n, m) for n in (3, 6, 9, 12) for m in (1, 4, 12))


def explore(*, n: int, m: int, function: str, seed: int, starts: int) -> Result:
    """One problem: for every form the fixed points, and where walks from random starts end."""
    generator = torch.Generator().manual_seed(seed)
    spins = _all_spins(n)
    jacobian, grads = _problem(spins, m, function, generator)
    answers = {"printed": _least_squares(spins, jacobian, grads, scaled=False)}
    answers["kappa"] = _least_squares(spins, jacobian, grads, scaled=True)
    answers["spins"] = _nearest(spins, jacobian, grads)
    first = 2 * torch.rand(starts, n, generator=generator, dtype=torch.float64) - 1
    forms = {form: _explore(spins, answer, first) for form, answer in answers.items()}
    weights = _descended(spins, jacobian, grads)
    both = (weights.pop("answer") == torch.arange(len(spins))) & _fixed(answers["printed"])
    forms["printed"]["fixed as weights"] = int(both.sum())
    return {"forms": forms, "weights": weights, "proposition": _relaxed_error(jacobian, grads)}


def _all_spins(n: int) -> Tensor:
    """All 2ⁿ vectors of spins; row number = the bits of −1."""
    numbers = torch.arange(2**n)[:, None] >> torch.arange(n)
    return 1.0 - 2.0 * (numbers & 1).double()


def _number(x: Tensor) -> Tensor:
    """The number of the spins of each row of x."""
    return ((sign(x) < 0) * 2 ** torch.arange(x.shape[1])).sum(1)


def _problem(spins: Tensor, m: int, function: str, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Jacobians (2ⁿ or 1, m, n) and output gradients (2ⁿ, m) at every vector of spins."""
    n = spins.shape[1]

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    slope, offset, target = normal(m, n), normal(m), n**0.5 * normal(m)
    outputs = spins @ slope.T + offset
    jacobian = slope[None]
    if function == "quadratic":
        bend = normal(m, n, n)
        bend = (bend + bend.transpose(1, 2)) / (2 * n) ** 0.5
        curved = torch.einsum("mij,sj->smi", bend, spins)
        outputs = outputs + 0.5 * torch.einsum("smi,si->sm", curved, spins)
        jacobian = slope + curved
    return jacobian, outputs - target


def _least_squares(spins: Tensor, jacobian: Tensor, grads: Tensor, *, scaled: bool) -> Tensor:
    """Π(v) = argmin_g Σᵢ (vᵢ − gᵀzᵢ)², zᵢ = jᵢ/‖jᵢ‖², at every vector of spins: its number among all.

    With κ = 1, v is brought to the root mean square that gᵀz has for random g.
    """
    z = jacobian / jacobian.square().sum(2, keepdim=True)
    v = grads
    if scaled:
        v = v * (z.square().sum((1, 2)) / v.square().sum(1)).sqrt()[:, None]
    linear = -2 * torch.einsum("smi,sm->si", z.expand(len(spins), -1, -1), v)
    return _lowest(spins, torch.einsum("smi,smj->sij", z, z), linear)


def _nearest(spins: Tensor, jacobian: Tensor, grads: Tensor) -> Tensor:
    """`Spins` on one batch: argmin of (g − G/ρ)ᵀA(g − G/ρ), A = Q + δ·mean diagonal, G = A⁻¹∇E, ρ the size of G."""
    matrix = torch.einsum("smi,smj->sij", jacobian, jacobian)
    penalties = torch.vmap(lambda matrix_of_spins: penalty_of(matrix_of_spins[None], jacobian.shape[1]))(matrix)
    ridge = penalties * matrix.diagonal(dim1=1, dim2=2).mean(1)
    matrix = matrix + ridge[:, None, None] * torch.eye(spins.shape[1], dtype=matrix.dtype)
    gradient = torch.einsum("smi,sm->si", jacobian.expand(len(spins), -1, -1), grads)
    wanted = torch.linalg.solve(matrix.expand(len(spins), -1, -1), gradient)
    return _lowest(spins, matrix, -2 * gradient / wanted.square().mean(1, keepdim=True).sqrt())


def _lowest(spins: Tensor, matrix: Tensor, linear: Tensor) -> Tensor:
    """The number of the g with the lowest gᵀAg + lᵀg, for matrices (2ⁿ or 1, n, n) and linear terms (2ⁿ, n)."""
    numbers = []
    for first in range(0, len(spins), 512):
        matrices = matrix[first : first + 512] if len(matrix) > 1 else matrix
        numbers.append((_energies(spins, matrices) + linear[first : first + 512] @ spins.T).argmin(1))
    return torch.cat(numbers)


def _energies(spins: Tensor, matrix: Tensor) -> Tensor:
    """gᵀAg of all spins for every matrix, without a tensor of 2ⁿ × 2ⁿ × n numbers."""
    pairs = torch.triu_indices(spins.shape[1], spins.shape[1], 1)
    products = spins[:, pairs[0]] * spins[:, pairs[1]]
    trace: Tensor = matrix.diagonal(dim1=1, dim2=2).sum(1, keepdim=True)
    return 2 * matrix[:, pairs[0], pairs[1]] @ products.T + trace


def _explore(spins: Tensor, answer: Tensor, first: Tensor) -> dict[str, Any]:
    """The fixed points of a table of answers, and walks through it."""
    fixed = _fixed(answer)
    result: dict[str, Any] = {"fixed": int(fixed.sum())}
    if result["fixed"]:
        for rate in RATES:
            for decay in DECAYS:
                result[f"{decay} {rate:g}"] = _walk(spins, answer, fixed, first, rate=rate, decay=decay)
    result["stays"] = _stays(spins, answer, fixed)
    return result


def _fixed(answer: Tensor) -> Tensor:
    """Where Π answers −s: its number has all bits turned."""
    return answer == len(answer) - 1 - torch.arange(len(answer))


def _descended(spins: Tensor, jacobian: Tensor, grads: Tensor) -> dict[str, Any]:
    """`QuboDescent` from all spins: s ← argmin over w of ⟨∇E(s), w − s⟩ + (c/2) (w − s)ᵀA(w − s), until nothing moves.

    A is the mean of JᵀJ over all s, and c the smallest with which no loss is above its model.
    """
    numbers = torch.arange(len(spins))
    matrix = torch.einsum("smi,smj->ij", jacobian, jacobian) / len(jacobian)
    losses = 0.5 * grads.square().sum(1)
    gradient = torch.einsum("smi,sm->si", jacobian.expand(len(spins), -1, -1), grads)
    along = gradient @ spins.T - (gradient * spins).sum(1, keepdim=True)
    products = spins @ matrix @ spins.T
    bends = products.diagonal()[:, None] + products.diagonal() - 2 * products
    bends = bends.clamp(min=1e-9 * bends.max())  # those of two outputs that are equal are rounding errors
    c = (2 * (losses - losses[:, None] - along) / bends).max().clamp(min=0)
    models = along + 0.5 * c * bends
    models[numbers, numbers] = -1e-9 * losses.max()  # so far below, or it stays
    answer = models.argmin(1)
    falls, steps, ends = bool((losses[answer] <= losses).all()), 0, numbers
    while not torch.equal(answer[ends], ends):
        steps, ends = steps + 1, answer[ends]
        if steps > len(spins):
            break
    best = (losses[ends] <= losses.min() * (1 + 1e-9)).double().mean().item()
    fixed = int((answer == numbers).sum())
    kept = {"fixed": fixed, "falls": falls, "ends": steps <= len(spins), "steps": steps, "best": best}
    return {"answer": answer, "curvature": c.item(), **kept}


def _walk(spins: Tensor, answer: Tensor, fixed: Tensor, first: Tensor, *, rate: float, decay: str) -> dict[str, float]:
    """Shares of starts that end in a fixed point, that begin in one, and that come back to where they were.

    At a constant rate a walk is on a lattice, x⁰ + α · integers: where the point at half the steps comes again, it is a
    cycle.
    """
    x, offsets = first.clone(), torch.zeros(first.shape, dtype=torch.long)
    begin = fixed[_number(x)]
    kept, cycles = offsets.clone(), torch.zeros(len(first), dtype=torch.long)
    steps = STEPS[rate]
    for step in range(steps):
        number = _number(x)
        if (fixed[number] | (cycles > 0)).all():
            break
        direction = spins[answer[number]]
        if decay == "constant":
            if step == steps // 2:
                kept = offsets.clone()
            elif step > steps // 2:
                again = (offsets == kept).all(1) & (cycles == 0)
                cycles[again] = step - steps // 2
            offsets -= direction.long()
            x = first + rate * offsets
        else:
            x = x - rate / (step + 1) ** 0.5 * direction
    reached = fixed[_number(x)]
    cycles[reached] = 0
    lengths = cycles[cycles > 0].double()
    return {
        "reached": reached.double().mean().item(),
        "began there": begin.double().mean().item(),
        "cycles": (cycles > 0).double().mean().item(),
        "length": lengths.median().item() if len(lengths) else 0.0,
    }


def _stays(spins: Tensor, answer: Tensor, fixed: Tensor) -> bool:
    """Whether from x⁰ = s spins stay for 50 steps of 0.1 if and only if s is fixed: Theorem 1 as printed, both ways."""
    x, still = spins.clone(), torch.ones(len(spins), dtype=torch.bool)
    start = torch.arange(len(spins))
    for _ in range(50):
        x = x - 0.1 * spins[answer[_number(x)]]
        still &= _number(x) == start
    return bool((still == fixed).all())


def _relaxed_error(jacobian: Tensor, grads: Tensor) -> dict[str, float]:
    """How far the relaxed map is from the gradient, in parts of its length; as it is, and with orthogonal rows.

    Of all minimisers over the reals, the shortest is compared.
    """
    j, v = jacobian[0], grads[0]
    errors = {"as it is": _distance(j, v)}
    if len(j) <= j.shape[1]:
        lengths = j.norm(dim=1, keepdim=True)
        errors["orthogonal rows"] = _distance(torch.linalg.qr(j.T)[0].T * lengths, v)
    return errors


def _distance(j: Tensor, v: Tensor) -> float:
    gradient = j.T @ v
    relaxed = torch.linalg.pinv(j / j.square().sum(1, keepdim=True)) @ v
    return float((relaxed - gradient).norm() / gradient.norm())


Pairs = Sequence[tuple[Mapping[str, Any], Mapping[str, Any]]]


def _exist(pairs: Pairs, *, form: str, **size: Any) -> list[bool]:
    """Whether each problem of these settings has a fixed point."""
    return [result["forms"][form]["fixed"] > 0 for job, result in pairs if size.items() <= job.items()]


def _existence(pairs: Pairs, sizes: Sequence[tuple[int, int]]) -> dict[str, Any]:
    head = ["n", "m", *(f"{function}, {words}" for function in FUNCTIONS for words in FORMS.values())]
    body = []
    for n, m in sizes:
        existing = [_exist(pairs, n=n, m=m, function=function, form=form) for function in FUNCTIONS for form in FORMS]
        body.append([str(n), str(m), *(f"{sum(each)} of {len(each)}" for each in existing)])
    return {"title": "Problems with a fixed point", "head": head, "body": body}


def _walk_table(pairs: Pairs) -> dict[str, Any]:
    """For problems with fixed points: shares of starts that reach one, and of the others that cycle."""
    head = ["form", "rate", "problems", "starts that reach one", "already there", "found by walking", "cycles"]
    body = []
    for form, words in FORMS.items():
        results = [result["forms"][form] for _, result in pairs if result["forms"][form]["fixed"]]
        for decay, formula in DECAYS.items():
            for rate in RATES:
                ends = [each[f"{decay} {rate:g}"] for each in results]
                name = f"{formula}, α = {rate:g}"
                if not ends:
                    body.append([words, name, "0", *["–"] * 5])
                    continue
                mean = {key: float(np.mean([end[key] for end in ends])) for key in ends[0]}
                walked = mean["reached"] - mean["began there"]
                shares = [mean["reached"], mean["began there"], walked]
                cycles = f"{mean['cycles']:.0%}" if decay == "constant" else "–"
                lengths = [end["length"] for end in ends if end["length"]]
                length = f"{np.median(lengths):.0f}" if lengths else "–"
                body.append([words, name, str(len(ends)), *(f"{share:.0%}" for share in shares), cycles, length])
    return {"title": "Where a fixed point exists: starts that reach one", "head": [*head, "length"], "body": body}


def _by_weights(pairs: Pairs, sizes: Sequence[tuple[int, int]]) -> dict[str, Any]:
    body = []
    for n, m in sizes:
        for function in FUNCTIONS:
            size = {"n": n, "m": m, "function": function}
            found = [result["weights"] for job, result in pairs if size.items() <= job.items()]
            fixed, steps = (np.mean([each[name] for each in found]) for name in ("fixed", "steps"))
            best = np.mean([each["best"] for each in found])
            body.append([str(n), str(m), function, f"{fixed:.1f}", f"{2**n}", f"{best:.0%}", f"{steps:.1f}"])
    head = ["n", "m", "f", "fixed points (mean)", "of", "starts that end at the lowest loss", "steps at most (mean)"]
    return {"title": "Weights chosen by QUBOs (QuboDescent)", "head": head, "body": body}


def _proposition(pairs: Pairs, sizes: Sequence[tuple[int, int]]) -> dict[str, Any]:
    body = []
    for n, m in sizes:
        results = [result["proposition"] for job, result in pairs if (job["n"], job["m"]) == (n, m)]
        cells = []
        for name in ("as it is", "orthogonal rows"):
            errors = [each[name] for each in results if name in each]
            cells.append(f"{np.median(errors):.1g}" if errors else "–")
        body.append([str(n), str(m), *cells])
    title = "Proposition 1: distance of the relaxed map from the gradient, in parts of its length (median)"
    return {"title": title, "head": ["n", "m", "random Jacobian", "orthogonal rows"], "body": body}


def _claims(pairs: Pairs) -> list[Judged]:
    claims = []
    for form, words in FORMS.items():
        results = [result["forms"][form] for _, result in pairs]
        stays = sum(each["stays"] for each in results)
        there = [each for each in results if each["fixed"]]
        source: Source = "paper" if form == "printed" else "aim"
        text = f"s is a fixed point if and only if −Π(∇E(s)) = s ({words})"
        detail = f"from x⁰ = s, spins stay for 50 steps of 0.1 exactly at these s in {stays} of {len(results)} problems"
        claims.append(with_verdict(text, stays == len(results), detail, source=source, number="Theorem 1"))
        walks = [[each[f"{decay} {rate:g}"]["reached"] for decay in DECAYS for rate in RATES] for each in there]
        ends = [end for walk in walks for end in walk]
        always = sum(all(end == 1 for end in walk) for walk in walks)
        detail = f"{len(there)} of {len(results)} problems have one; all starts reach it at all rates in {always}"
        detail += f", {np.mean(ends):.0%} of the starts on average" if ends else ""
        text = f"If a fixed point exists, the updates converge to it ({words})"
        held: bool | Verdict = always == len(there) if there else "cannot tell"
        claims.append(with_verdict(text, held, detail, source=source, number="abstract"))
    found = [result["weights"] for _, result in pairs]
    ends = sum(each["falls"] and each["ends"] and each["fixed"] > 0 for each in found)
    detail = (
        f"there is one, no step raises the loss and all starts end, in {ends} of {len(found)} problems, and "
        f"{np.mean([each['best'] for each in found]):.0%} of the starts at the lowest loss of all; "
    )
    theirs, ours = (sum(r["forms"]["printed"][key] for _, r in pairs) for key in ("fixed", "fixed as weights"))
    detail += f"of {theirs} fixed points of the map as printed {ours} are fixed here too"
    text = "If QUBOs choose the weights themselves, there is a fixed point, and every start reaches one"
    claims.append(with_verdict(text, ends == len(found), detail, source="aim"))
    errors = [(job["m"], result["proposition"]) for job, result in pairs]
    single, several = ([each["as it is"] for m, each in errors if (m > 1) == many] for many in (False, True))
    square = [each["orthogonal rows"] for _, each in errors if "orthogonal rows" in each]
    detail = (
        f"distance from the gradient, in parts of its length: at most {max([*single, *square]):.0e} for m = 1 and for "
        "orthogonal rows of the Jacobian, of which the gradient is the shortest of many minimisers while m < n; "
        + (f"{np.median(several):.2g} (median) for m > 1 in general. " if several else "")
        + "The proof writes ∇E = vᵢjᵢ for every i and so drops the sum over i"
    )
    holds = not several or bool(np.median(several) <= 1e-6)
    return [
        *claims,
        with_verdict("Over the reals, Π returns the gradient, for every f", holds, detail, number="Prop. 1"),
    ]


@dataclass(frozen=True)
class FixedPointStudy(Study):
    """All 2ⁿ spins enumerated: Π at each of them, so that every run of P-SBGD is a walk through a table."""

    name = "fixed-points"
    title = "Theorem 1: fixed points, and whether P-SBGD reaches them"
    about = (
        "Random y = f(x), linear (y = Jx + b) or quadratic (yᵢ = ½xᵀAᵢx + Jᵢx + bᵢ) in n spins with m outputs, and "
        "E = ½‖y − y*‖². All 2ⁿ spins are enumerated: s is a fixed point if −Π(∇E(s)) = s. Where there is one, P-SBGD "
        "runs from random starts in [−1, 1]ⁿ at three rates, constant and falling as 1/√t. Beside it, QUBOs choose "
        "the weights themselves (QuboDescent), from all spins, with the smallest c that bounds the curvature."
    )
    paper = (
        "Theorem 1: s is a fixed point if and only if −Π(∇E(s)) = s; it may not exist. Abstract: if one exists, the "
        "updates converge to it. Proposition 1: over the reals, Π returns the gradient."
    )
    work = staticmethod(explore)
    small = {"seeds": 3, "starts": 8, "sizes": ((3, 1), (6, 1), (6, 4))}
    seeds: int = 12
    starts: int = 32
    sizes: tuple[tuple[int, int], ...] = SIZES

    def jobs(self) -> Sequence[Job]:
        return [
            {"n": n, "m": m, "function": function, "seed": seed, "starts": self.starts}
            for n, m in self.sizes
            for function in FUNCTIONS
            for seed in range(self.seeds)
        ]

    def presentation(self, results: Sequence[Result]) -> dict[str, Any]:
        pairs = list(zip(self.jobs(), results, strict=True))
        return {
            "figures": [],
            "tables": [
                *(_walk_table(pairs), _existence(pairs, self.sizes)),
                *(_by_weights(pairs, self.sizes), _proposition(pairs, self.sizes)),
            ],
            "claims": _claims(pairs),
        }
