"""Studies of QUBOs on an annealer's chip: embeddings, reads, spectral gaps, and what they do to training."""
