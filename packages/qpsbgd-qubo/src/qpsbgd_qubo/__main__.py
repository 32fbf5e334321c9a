"""`python -m qpsbgd_qubo` is `qpsbgd-qubo`."""

import sys


def main() -> int:
    """Run the command line; the exit status."""
    try:
        from qpsbgd_qubo import command

        return command.main()
    except KeyboardInterrupt:  # while Python imports; the command has its own answers
        return 130


if __name__ == "__main__":
    sys.exit(main())
