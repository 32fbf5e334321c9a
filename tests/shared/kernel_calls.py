"""Calls of kernels, compiled or plain, for tests that send the same vectors through both."""

import copy

import numpy as np

NUMBERS = (0, 1, 2, -1, -(2**63))
HUGE = (2**31, 2**62, 2**63 - 1)


def run(module, name, arguments):
    """What the kernel returns, and its arguments as it leaves them."""
    copies = [part.copy() if isinstance(part, np.ndarray) else part for part in arguments]
    return called(module, name, copies), [part for part in copies if isinstance(part, np.ndarray)]


def called(module, name, arguments):
    """What the kernel returns; rows and groups are made of the tuples that stand for them."""
    first, *rest = arguments
    if isinstance(first, tuple):
        grouped = isinstance(first[0], tuple)
        first = module.Groups(module.Rows(*first[0]), *first[1:]) if grouped else module.Rows(*first)
    return getattr(module, name.split()[0])(first, *rest)


def broken(arguments, but=None, *, longer):
    """The same arguments with one array that is too short along one axis or, if asked for, too long; not `but`."""
    for place, part in enumerate(arguments):
        if not isinstance(part, np.ndarray) or not part.size or part is but:
            continue
        for axis, size in enumerate(part.shape):
            for count in (size - 1, size + 1)[: 1 + longer]:
                changed = np.ascontiguousarray(part.take(np.arange(count).clip(max=size - 1), axis))
                yield place, axis, [*arguments[:place], changed, *arguments[place + 1 :]]


def spoiled(arguments, generator, *, stop=None):
    """A copy of the arguments, of which up to three have another shape, layout, memory, type or value.

    Where a number becomes huge, or rows may no longer be symmetric, a search may not end: the flag `stop` among the
    arguments is then set. Without one, numbers stay small.
    """
    given = copy.deepcopy(tuple(arguments))
    leaves = list(_leaves(given))
    flags = [path for path, part in _leaves(tuple(arguments)) if part is stop]
    endless = False
    for _ in range(generator.integers(1, 4)):
        path, part = leaves[generator.integers(len(leaves))]
        endless |= len(path) > 1
        if isinstance(part, np.ndarray):
            given = _replaced(given, path, _other_array(part, generator, [one for _, one in leaves]))
        elif isinstance(part, int) and not isinstance(part, bool):
            number = int(generator.choice(NUMBERS + HUGE if flags else NUMBERS))
            given = _replaced(given, path, number)
            endless |= number in HUGE
    return _replaced(given, flags[0], np.ones(1, np.uint8)) if endless and flags else given


def _other_array(array, generator, others):
    others = [one for one in others if isinstance(one, np.ndarray) and one.nbytes >= array.nbytes]
    match generator.integers(8):
        case 0:  # memory that another argument has
            memory = others[generator.integers(len(others))].reshape(-1).view(np.uint8)
            return memory[: array.nbytes].view(array.dtype).reshape(array.shape)
        case 1:  # crooked
            moved = np.zeros(array.nbytes + 1, np.uint8)[1:].view(array.dtype).reshape(array.shape)
            moved[...] = array
            return moved
        case 2:  # with strides
            return np.repeat(array, 2, -1)[..., ::2]
        case 3:
            return np.zeros([int(generator.integers(4)) for _ in array.shape], array.dtype)
        case 4:  # without numbers, but with a huge axis
            shape = [2**40, *[0] * (array.ndim - 1)] if array.ndim > 1 else [0]
            return np.zeros(generator.permutation(shape), array.dtype)
        case 5:
            return np.zeros(array.shape, generator.choice(["f4", "f8", "i4", "i8", "u1"]))
        case 6:
            return np.asfortranarray(array)
        case _:  # a number that does not belong there
            changed = array.copy()
            if changed.size:
                integers = np.issubdtype(array.dtype, np.integer)
                most = np.iinfo(array.dtype) if integers else np.finfo(array.dtype) if array.dtype != bool else None
                values = (most.min, most.max, 0, *(() if integers else (np.nan, np.inf))) if most else (False, True)
                changed.flat[generator.integers(changed.size)] = values[generator.integers(len(values))]
            return changed


def _leaves(arguments, path=()):
    for place, part in enumerate(arguments):
        if isinstance(part, tuple):
            yield from _leaves(part, (*path, place))
        else:
            yield (*path, place), part


def _replaced(arguments, path, value):
    first, *rest = path
    new = _replaced(arguments[first], rest, value) if rest else value
    return (*arguments[:first], new, *arguments[first + 1 :])
