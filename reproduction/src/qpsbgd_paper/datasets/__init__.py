"""The paper's data sets: `load_adult`, `load_mnist`, `load_bits`, `load_planetoid`, `load_karate`; and `load_cifar10`.

Published files are taken from the folder in `QPSBGD_DATA`, or downloaded once into the user's cache.
"""

from qpsbgd_paper.datasets.adult import load_adult
from qpsbgd_paper.datasets.cifar import load_cifar10
from qpsbgd_paper.datasets.graphs import Graph, load_karate, load_planetoid
from qpsbgd_paper.datasets.mnist import load_mnist
from qpsbgd_paper.datasets.mnist_bits import load_bits

__all__ = ["Graph", "load_adult", "load_bits", "load_cifar10", "load_karate", "load_mnist", "load_planetoid"]
