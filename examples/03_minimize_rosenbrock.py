"""P-SBGD on plain functions: Rosenbrock's valley over two spins, and 30 signs recovered from noisy measurements."""

import torch

import qpsbgd


def valley(x):
    return torch.stack([1 - x[0], 10 * (x[1] - x[0] ** 2)])


def square(y):
    return y.square().sum()


for start in ([-0.3, -0.2], [-0.3, 0.2], [0.3, -0.2]):
    found = qpsbgd.minimize(valley, square, torch.tensor(start), lr=0.1, solver="exact")
    print(f"from {start}: x = {found.x.int().tolist()}, value {found.value:g} after {len(found.values) - 1} steps")


torch.manual_seed(0)
planted = torch.randn(30).sign()
mixing = torch.randn(60, 30)
measured = torch.tanh(mixing @ planted / 5) + 0.05 * torch.randn(60)
for seed in (1, 2, 3):
    start = torch.randn(30, generator=torch.Generator().manual_seed(seed))
    found = qpsbgd.minimize(lambda x: torch.tanh(mixing @ x / 5) - measured, square, start, lr=0.2, steps=200)
    right = int((found.x == planted).sum())
    print(f"30 hidden signs: value {found.values[0]:.2f} → {found.value:.2f}, {right} of 30 signs found")
