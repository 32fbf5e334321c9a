"""Calls of kernels, compiled or plain, for tests that send the same vectors through both."""

import numpy as np


def run(module, name, arguments):
    """What the kernel returns, and its arguments as it leaves them."""
    copies = [part.copy() if isinstance(part, np.ndarray) else part for part in arguments]
    if isinstance(copies[0], tuple):
        first = copies[0]
        grouped = isinstance(first[0], tuple)
        copies[0] = module.Groups(module.Rows(*first[0]), *first[1:]) if grouped else module.Rows(*first)
    returned = getattr(module, name.split()[0])(*copies)
    return returned, [part for part in copies if isinstance(part, np.ndarray)]


def broken(arguments, but=None):
    """The same arguments with one array that has one row too few, for every array in turn `but` one."""
    for place, part in enumerate(arguments):
        if isinstance(part, np.ndarray) and part.size and part is not but:
            yield place, [*arguments[:place], np.ascontiguousarray(part[:-1]), *arguments[place + 1 :]]
