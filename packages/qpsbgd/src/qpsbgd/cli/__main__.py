"""`python -m qpsbgd.cli` is `qpsbgd`."""

from qpsbgd.cli import main

main()
