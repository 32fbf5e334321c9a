"""P-SBGD on a plain function: Rosenbrock's valley, first over two spins, then over numbers made of six bits each."""

import torch

import qpsbgd


def valley(x):
    return torch.stack([1 - x[0], 10 * (x[1] - x[0] ** 2)])


def square(y):
    return y.square().sum()


for start in ([-0.3, -0.2], [-0.3, 0.2], [0.3, -0.2]):
    found = qpsbgd.minimize(valley, square, torch.tensor(start), lr=0.1, solver="exact")
    print(f"from {start}: x = {found.x.int().tolist()}, value {found.value:g} after {len(found.values) - 1} steps")

BITS = 6
powers = 2.0 ** -torch.arange(BITS)


def numbers(spins):
    """Two numbers in (−2, 2), each a sum of six spins times 1, 1/2, 1/4, …"""
    return spins.reshape(2, BITS) @ powers


runs = []
for seed in range(12):
    start = 0.5 * torch.randn(2 * BITS, generator=torch.Generator().manual_seed(seed))
    runs.append(qpsbgd.minimize(lambda spins: valley(numbers(spins)), square, start, lr=0.5, solver="descent"))
best = min(runs, key=lambda run: run.value)
print(f"with {BITS} bits a number: x = {numbers(best.x).tolist()}, value {best.value:.3f} (the minimum is at [1, 1])")
