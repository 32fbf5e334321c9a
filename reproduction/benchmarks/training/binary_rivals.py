"""How others make a weight binary without training: a matrix W (m, n), H = mean(x xᵀ) of its inputs → Ŵ, bits stored.

Written anew after the papers and the authors' code, as compact as they can be; nothing is copied.

- BiLLM (Huang et al., 2024; github.com/Aaronhuang-778/BiLLM): columns that matter get a second vector for what the
  first leaves, the other weights are split at a size into two groups, each with a mean and a scale per row; blocks of
  128 columns, errors passed on to later blocks as in GPTQ.
- ARB-LLM (Li et al., 2024; github.com/ZHITENGLI/ARB-LLM), its form RC with column groups: scales per row and column,
  refined by turns; columns that matter are split at a size, too.
- Double binary factorisation (Boža & Macko, 2025; github.com/usamec/double_binary): W ≈ a S₁ m S₂ b by the method of
  multipliers, weights counted by the sizes of inputs and of output gradients. Its fine-tuning of the layers around is
  left out.

Every real number is stored in 16 bits. Signs, scales, means, masks of columns and of groups are all counted.
"""

import copy
from dataclasses import dataclass

import torch

from qpsbgd.binarization.kicks import PlaneSearch
from qpsbgd.binarization.planes import Effort, Fit
from qpsbgd.nn import sign

NUMBER = 16
"""Bits of a stored real number."""
BLOCK, MOST_SALIENT, DAMPING = 128, 50, 0.01
"""Of BiLLM and ARB-LLM, as their authors run them."""
TURNS = 100
"""Of double binary factorisation; its authors make 260, which lose 3 % less energy of a random matrix."""
AT_ONCE = 16  # choices of columns or sizes that a GPU compares in one go; one by one they stay in a CPU's cache


def damped(H, share=DAMPING):
    return H + share * H.diagonal().mean() * torch.eye(len(H), dtype=H.dtype, device=H.device)


def inverse_factor(H):
    """The upper Cholesky factor of H⁻¹, H damped as in GPTQ."""
    H = damped(H)
    return torch.linalg.cholesky(torch.cholesky_inverse(torch.linalg.cholesky(H)), upper=True)


def by_blocks(W, H, approximate):
    """Ŵ and its bits by blocks: approximate(weights, diagonal of the factor of H⁻¹), errors passed on to later ones."""
    factor, left, close, bits = inverse_factor(H), W.clone(), torch.zeros_like(W), 0
    for start in range(0, W.shape[1], BLOCK):
        block = slice(start, min(start + BLOCK, W.shape[1]))
        diagonal = factor.diagonal()[block]
        close[:, block], more = approximate(left[:, block], diagonal)
        bits += more
        error = (left[:, block] - close[:, block]) / diagonal
        left[:, block.stop :] -= error @ factor[block, block.stop :]
    return close, bits


def row_mean(x, mask):
    return (x * mask).sum(-1, keepdim=True) / mask.sum(-1, keepdim=True).clamp(min=1)


def residual(x, mask, order):
    """A mean and a scale per row, `order` times for what is left."""
    close = torch.zeros_like(x)
    for _ in range(order):
        rest = x - close
        mean = row_mean(rest, mask)
        close = close + (mean + row_mean((rest - mean).abs(), mask) * sign(rest - mean)) * mask
    return close


def nearest_choice(x, choices, approximate):
    """The place of the first of some choices with which approximate(some of them) is nearest to x (m, n)."""
    parts = choices.split(AT_ONCE if x.is_cuda else 1)
    return int(torch.cat([(x - approximate(part)).square().mean((-2, -1)) for part in parts]).argmin())


def salient_columns(x):
    """The columns, most of them 49, whose second vector saves most, as a mask."""
    ranked = x.abs().sum(0).topk(min(MOST_SALIENT, x.shape[1])).indices
    places = ranked.new_full(x.shape[1:], len(ranked)).scatter(0, ranked, torch.arange(len(ranked)).to(ranked))
    masks = places < torch.arange(1, len(ranked)).to(ranked)[:, None, None]  # (49, 1, n)
    return masks[nearest_choice(x, masks, lambda part: residual(x, part, 2) + residual(x, ~part, 2))].expand_as(x)


def size_groups(x, where, order, beside):
    """The entries of a mask, those below and those above the size at which two groups lose least."""
    sizes = torch.quantile(
        x.abs()[where] if order > 1 else (x * where).abs().flatten(), torch.linspace(0.1, 0.9, 81).to(x)
    )

    def groups(size):
        return where & (x.abs() < size), where & (x.abs() >= size)

    def approximate(part):
        return beside + sum(residual(x, group, order) for group in groups(part[:, None, None]))

    return groups(sizes[nearest_choice(x, sizes, approximate)])


def billm(W, H, bits=1, output_norms=None):
    def approximate(weights, diagonal):
        m, n = weights.shape
        counted = weights.square() / diagonal.square()
        salient = salient_columns(counted)
        groups = size_groups(counted, ~salient, 1, residual(counted, salient, 2))
        close = residual(weights, salient, 2) + sum(residual(weights, group, 1) for group in groups)
        columns = int(salient[0].sum())
        return close, m * n + m * columns + m * (n - columns) + n + 8 * m * NUMBER

    return by_blocks(W, H, approximate)


def alternating(x, mask, order, turns=15):
    """Scales per row and column of `order` vectors, refined by turns; with two, so are the vectors."""
    rows, columns, planes, left = [], [], [], x * mask
    for _ in range(order):
        r = row_mean(left.abs(), mask)
        ratio = (left.abs() / r.clamp(min=1e-30)) * mask
        c = ratio.sum(0, keepdim=True) / mask.sum(0, keepdim=True).clamp(min=1)
        rows, columns, planes = [*rows, r], [*columns, c], [*planes, sign(left)]
        left = left - r * c * planes[-1] * mask
    for _ in range(turns):
        for k in range(order):
            rest = x * mask - sum(rows[i] * columns[i] * planes[i] * mask for i in range(order) if i != k)
            along = columns[k] * planes[k] * mask
            rows[k] = (along * rest).sum(1, keepdim=True) / (along.square().sum(1, keepdim=True) + 1e-8)
            along = rows[k] * planes[k] * mask
            columns[k] = (along * rest).sum(0, keepdim=True) / (along.square().sum(0, keepdim=True) + 1e-8)
        if order == 2:
            first, second = (r * c for r, c in zip(rows, columns, strict=True))
            signs = x.new_tensor([(-1.0, -1.0), (-1.0, 1.0), (1.0, -1.0), (1.0, 1.0)])
            levels = signs[:, 0, None, None] * first + signs[:, 1, None, None] * second
            nearest = signs[(levels - x).abs().argmin(0)]
            planes = [nearest[..., 0], nearest[..., 1]]
    return sum(r * c * plane * mask for r, c, plane in zip(rows, columns, planes, strict=True))


def arb_rc(W, H, bits=1, output_norms=None):
    def approximate(weights, diagonal):
        m, n = weights.shape
        counted = weights.square() / diagonal.square()
        salient = salient_columns(counted)
        strong = size_groups(counted, salient, 2, 0)
        weak = size_groups(counted, ~salient, 1, alternating(counted, salient, 2))
        close = sum(alternating(weights, group, 2) for group in strong)
        close = close + sum(alternating(weights, group, 1) for group in weak)
        columns = int(salient[0].sum())
        numbers = 2 * 2 * (m + columns) + 2 * (m + n - columns)
        return close, m * n + m * columns + m * n + n + numbers * NUMBER

    return by_blocks(W, H, approximate)


def rank_one(W, steps=5):
    """sign(W) times the best matrix of rank one for |W|."""
    right = W.new_ones(W.shape[1])
    for _ in range(steps):
        left = W.abs() @ right
        left = left / left.norm().clamp(min=1e-30)
        right = W.abs().T @ left
    return sign(W) * torch.outer(left, right)


def other_half(A, W, Z, U, start, steps=3):
    """B = scaled signs with A B near W, by the method of multipliers from where it stood."""
    size, wanted, unit = damped(A.T @ A, 0.03), A.T @ W, torch.eye(A.shape[1], dtype=A.dtype, device=A.device)
    first, later = (torch.linalg.cholesky(size + ridge * unit) for ridge in (start, 1.0))
    B = torch.cholesky_solve(wanted + start * (Z - U), first)
    for step in range(steps):
        Z = rank_one(B + U)
        U = U + B - Z
        if step < steps - 1:
            B = torch.cholesky_solve(wanted + Z - U, later)
    return Z, U


def middle(m, n, bits):
    """The inner width of two factors for at most so many stored bits."""
    return max(1, int((bits * m * n - NUMBER * (m + n)) / (m + n + NUMBER)))


@dataclass
class Factors:
    """diag(a) S₁ diag(c) S₂ diag(b): scales (m,), (k,), (n,) and signs (m, k), (k, n)."""

    a: torch.Tensor
    first: torch.Tensor
    c: torch.Tensor
    second: torch.Tensor
    b: torch.Tensor

    @classmethod
    def of(cls, A, B):
        """Of two matrices that are signs times a matrix of rank one."""
        (a, left), (right, b) = (sizes(abs(half)) for half in (A, B))
        return cls(a, sign(A), left * right, sign(B), b)

    @property
    def inner(self):
        return self.c[:, None] * self.second * self.b

    def product(self):
        return (self.a[:, None] * self.first) @ self.inner

    @property
    def bits(self):
        return self.first.numel() + self.second.numel() + NUMBER * (len(self.a) + len(self.b) + len(self.c))


def sizes(matrix):
    """Column and row of a matrix of rank one."""
    row = matrix.square().mean(0).sqrt()
    return matrix @ row / row.square().sum(), row


def double_factors(W, H, bits, output_norms, turns=TURNS):
    m, n = W.shape
    k = middle(m, n, bits)
    left, right = output_norms.sqrt()[:, None] + 1e-8, H.diagonal().sqrt() + 1e-8
    wanted = left * W * right
    wanted = wanted / (unit := wanted.square().mean().sqrt())
    draw = torch.Generator().manual_seed(0)
    A, B = (torch.randn(shape, dtype=W.dtype, generator=draw).to(W) for shape in ((m, k), (k, n)))
    UA, UB = torch.zeros_like(A), torch.zeros_like(B)
    for turn in range(turns):
        start = min(1.0, turn / (turns - 3)) ** 3
        A, UA = (part.T for part in other_half((B.T / (B.norm(dim=1) + 1e-12)), wanted.T, A.T, UA.T, start))
        norms = A.norm(dim=0) + 1e-12
        B, UB = other_half(A / norms, wanted, B, UB, start)
    return Factors.of(A / norms / left, unit * B / right)


def double_binary(W, H, bits=1, output_norms=None):
    factors = double_factors(W, H, bits, output_norms)
    return factors.product(), factors.bits


def double_family(W, H, bits=1, output_norms=None, sweeps=3, rounds=10):
    """The same form, from there on by our solvers: given one half, and all rows of the other but one, families of Q.

    S₁: columns of a family with the quadratic part S̃₂ H S̃₂ᵀ. S₂: row by row, D_b H D_b for all of them.
    """
    factors = double_factors(W, H, bits, output_norms)
    H = damped(H)
    draw = torch.Generator(H.device).manual_seed(0)

    def energy():
        rest = W - factors.product()
        return float(((rest @ H) * rest).sum())

    best, lost = copy.deepcopy(factors), energy()
    for _ in range(sweeps):
        metric = damped(factors.inner @ H @ factors.inner.T, 1e-3)
        weights = torch.linalg.solve(metric, factors.inner @ H @ W.T)
        fit = Fit(metric, weights, factors.first.T[None], factors.a[None])
        fit.search(Effort("kicks", rounds, draw))
        factors.first, factors.a = fit.planes[0].T.contiguous(), fit.scales[0]
        scaled = factors.b[:, None] * H * factors.b
        search, outer = PlaneSearch(scaled, draw), factors.a[:, None] * factors.first
        rest = W - factors.product()
        for row in range(len(factors.c)):
            rest += torch.outer(outer[:, row], factors.c[row] * factors.second[row] * factors.b)
            wanted = outer[:, row] @ rest / outer[:, row].square().sum()
            target = (factors.b * (H @ wanted))[:, None]
            scale = factors.c[row : row + 1].abs()
            spins = sign(factors.c[row]) * factors.second[row][:, None]
            spins = search.improve(target, spins, scale, rounds=rounds)
            factors.second[row] = spins[:, 0]
            factors.c[row] = (spins * target).sum() / (spins * (scaled @ spins)).sum()
            rest -= torch.outer(outer[:, row], factors.c[row] * factors.second[row] * factors.b)
        inner = outer @ (factors.c[:, None] * factors.second)
        factors.b = torch.linalg.solve(H * (inner.T @ inner), (inner * (W @ H)).sum(0))
        if energy() < lost:
            best, lost = copy.deepcopy(factors), energy()
    return best.product(), best.bits
