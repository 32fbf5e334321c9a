"""One network, several processes: each takes a share of every batch, and all have the same weights at all times.

    torchrun --nproc-per-node 2 examples/07_many_processes.py

Without torchrun it is one process and trains the same network, up to rounding. Needs scikit-learn for the digits.
"""

import os

import torch
import torch.distributed as dist
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from qpsbgd import QPSBGD
from qpsbgd.nn import BinaryLinear

EPOCHS, BATCH = 4, 64

rank, ranks = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))
if ranks > 1:
    dist.init_process_group("gloo")  # "nccl" on GPUs, one for each process

torch.manual_seed(0)  # the same order of rows in every process
pixels, digits = load_digits(return_X_y=True)
images, targets = torch.tensor(pixels / 8 - 1, dtype=torch.float32), torch.tensor(digits)
train, test = torch.randperm(len(images)).split([1437, 360])

model = nn.Sequential(BinaryLinear(64, 128), nn.Hardtanh(), BinaryLinear(128, 10))
trained = DistributedDataParallel(model) if ranks > 1 else model
optimizer = QPSBGD(model, projection="spins", steps=EPOCHS * (len(train) // BATCH))

for epoch in range(EPOCHS):
    model.train()
    for rows in train[torch.randperm(len(train))].split(BATCH):
        if len(rows) < BATCH:
            continue  # equal shares, so that the mean of the ranks' losses is that of the batch
        own = rows[rank::ranks]
        optimizer.zero_grad()
        loss = F.cross_entropy(trained(images[own]), targets[own])
        loss.backward()
        optimizer.step()
    model.eval()
    with torch.no_grad():
        accuracy = (model(images[test]).argmax(1) == targets[test]).float().mean()
    if rank == 0:
        print(f"epoch {epoch + 1}: loss of rank 0 {loss.item():.3f}, test accuracy {accuracy:.3f}", flush=True)

if ranks > 1:
    dist.destroy_process_group()
