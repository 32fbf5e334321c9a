"""The paper's data sets: `load_adult`, `load_mnist`, `load_bits`, `load_planetoid`, `load_karate`.

Published files are taken from the folder in `QPSBGD_DATA`, or downloaded once into the user's cache.
"""

from qpsbgd.datasets.adult import Adult, load_adult
from qpsbgd.datasets.graphs import Graph, load_planetoid
from qpsbgd.datasets.karate import load_karate
from qpsbgd.datasets.mnist import Mnist, load_mnist
from qpsbgd.datasets.mnist_bits import RECIPES, Recipe, load_bits

__all__ = [
    "RECIPES",
    "Adult",
    "Graph",
    "Mnist",
    "Recipe",
    "load_adult",
    "load_bits",
    "load_karate",
    "load_mnist",
    "load_planetoid",
]
