"""The paper's data sets, a module each.

Published files are taken from the folder in `QPSBGD_DATA`, or downloaded once into the user's cache.
"""
