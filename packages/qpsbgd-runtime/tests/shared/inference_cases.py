"""Arguments of the kernels of inference, with the results that follow from their definitions by brute force."""

import itertools

import numpy as np

from qpsbgd_runtime.real_steps import Kind, RealStep

NO_POOL = (np.zeros((0, 0), np.int64),) * 2


def cases():
    """Name → arguments, the last of them the output, and what is expected in it; names begin with the kernel's."""
    return {name: (arguments, expected) for name, arguments, expected in (*bit_chains(), *layers(), *real_steps())}


def packed(signs):
    """Signs ±1 (…, n) as words (…, ⌈n / 64⌉)."""
    bits = np.zeros((*signs.shape[:-1], -(-signs.shape[-1] // 64) * 64), bool)
    bits[..., : signs.shape[-1]] = signs > 0
    return np.packbits(bits, axis=-1, bitorder="little").view("<u8").astype(np.uint64)


def bit_chains():
    """Three dense layers over bits, of which the last gives sums; and it alone."""
    generator = np.random.default_rng(1)
    sizes = (70, 130, 20, 7)
    weights = [generator.choice([-1, 1], (n, m)) for n, m in itertools.pairwise(sizes)]
    most, flips = (np.full(130, 35), np.full(20, 65)), [generator.choice([-1, 1], m) for m in sizes[1:3]]
    rows = generator.standard_normal((6, 70)).astype(np.float32)
    factor, offset = np.full(7, 0.5, np.float32), np.arange(7, dtype=np.float32)

    signs = np.where(rows >= 0, 1, -1)
    for layer, differing, flip in zip(weights[:2], most, flips, strict=True):
        signs = np.where(len(layer) - signs @ layer <= 2 * differing, 1, -1) * -flip  # flipped where the bit is 1
    words = [packed(layer.T).T.ravel() for layer in weights]
    flipped = np.zeros((3, 2), np.uint64)
    for column, flip in enumerate(flips):
        flipped[: -(-len(flip) // 64), column] = packed(flip)
    three = np.array(sizes[:3]), np.concatenate(words), np.concatenate(most).astype(np.uint64), flipped
    sums = np.zeros((6, 7), np.float32)
    yield "dense_sums", (rows, *three, factor, offset, sums), signs @ weights[2] / 2 + offset
    one = np.array([20]), words[2], np.zeros(0, np.uint64), np.zeros((3, 0), np.uint64)
    first = rows[:, :20].copy()
    expected = np.where(first >= 0, 1, -1) @ weights[2] / 2 + offset
    yield "dense_sums alone", (first, *one, factor, offset, sums), expected


def window_sums(images, signs, rows, columns, empty):
    """Sums (N, rows, columns, units) of images (N, …, C) with signs (groups, units, …window, C / groups)."""
    groups, units, *_, channels = signs.shape
    sums = np.zeros((len(images), len(rows), len(columns), groups * units), np.int64)
    for i, j, y, x in np.ndindex(len(rows), len(columns), rows.shape[1], columns.shape[1]):
        inside = rows[i, y] >= 0 and columns[j, x] >= 0
        pixels = images[:, rows[i, y], columns[j, x]].astype(int) if inside else np.full_like(images[:, 0, 0], empty)
        for group in range(groups):
            part = pixels[:, group * channels : (group + 1) * channels].astype(int)
            sums[:, i, j, group * units : (group + 1) * units] += part @ signs[group, :, y, x].T
    return sums


def pooled(sums, rows, columns):
    """The largest of the sums in every window; −1 is outside."""
    out = np.zeros((len(sums), len(rows), len(columns), sums.shape[-1]), np.int64)
    for i, j in np.ndindex(len(rows), len(columns)):
        out[:, i, j] = sums[:, rows[i][rows[i] >= 0]][:, :, columns[j][columns[j] >= 0]].max((1, 2))
    return out


def layers():
    """Layers over bits and bytes: with words that are full or not, with and without padding, pools and lines."""
    generator = np.random.default_rng(1)
    rows, columns = np.arange(5)[:, None] + np.arange(3) - 1, np.arange(5)[:, None] + np.arange(2)
    rows[rows > 4] = -1
    pool = (np.array([[0, 1], [3, 4]]), np.array([[-1, 0, 1], [2, 3, 4]]))
    for groups, channels, units in ((1, 1, 5), (1, 37, 24), (2, 140, 9)):
        signs = generator.choice([-1, 1], (groups, units, 3, 2, channels // groups))
        words = packed(signs.reshape(groups, units, -1)).swapaxes(1, 2).copy()
        positive = (signs > 0).sum(-1, dtype=np.int32).transpose(0, 2, 3, 1).copy()
        bits = generator.choice([-1, 1], (2, 5, 6, channels)).astype(np.int8)
        kinds = {"bit_layer": ((bits, words, positive), window_sums(bits, signs, rows, columns, 0))}
        if groups == 1:
            panels = np.zeros((-(-units // 16) * 16, -(-signs[0, 0].size // 4) * 4), np.int8)
            panels[:units, : signs[0, 0].size] = signs.reshape(units, -1)
            panels = panels.reshape(-(-units // 16), 16, -1, 4).swapaxes(1, 2).copy()
            starts = generator.integers(-9, 9, len(panels) * 16).astype(np.int32)
            images = generator.integers(0, 256, (2, 5, 6, channels)).astype(np.uint8)
            sums = window_sums(images, signs, rows, columns, 128) + starts[:units]
            kinds["byte_layer"] = ((images, panels, starts, 128), sums)
        count = groups * units
        factors, offsets = generator.integers(-(2**40), 2**40, count), generator.integers(-(2**46), 2**46, count)
        bounds = (np.full(count, -100, np.int32), np.arange(count, dtype=np.int32))
        for (name, (first, sums)), pools in itertools.product(kinds.items(), (NO_POOL, pool)):
            sums = pooled(sums, *pool) if pools is pool else sums
            at = int(sums[0, 0, 0, count - 1])
            lines = (factors, offsets, 42, *bounds, np.array([[0, 3, 7], [count - 1, at, -5]]))
            none = tuple(part[:0] if isinstance(part, np.ndarray) else part for part in lines)
            label = f"{name} {channels} {sums.shape[1]}"
            windows = (*first, rows, columns, *pools)
            yield f"{label} sums", (*windows, *none, np.zeros(sums.shape, np.int32)), sums
            results = ((factors * sums + offsets) // 2**42).clip(*bounds)
            results[..., 0][sums[..., 0] == 3] = 7
            results[..., count - 1][sums[..., count - 1] == at] = -5
            yield f"{label} lines", (*windows, *lines, np.zeros(sums.shape, np.uint8)), results.astype(np.uint8)


def real_steps():
    """Single steps, and three in a row; numbers, taps and words hold no more than is read."""
    generator = np.random.default_rng(1)
    for units, samples in itertools.product((5, 16, 37), (1, 2, 3, 4, 7, 70)):
        matrix = generator.standard_normal((70, units))
        step = RealStep(Kind.SUMS, 0, 1, 1, 1, 70, 1, 1, units, direct=1)
        inputs = generator.standard_normal((samples, 70))
        yield f"real_steps dense {units} {samples}", *real_case([step], [panels(matrix[None])], inputs, inputs @ matrix)
    rows, columns = np.array([[-1, 0, 1], [1, 2, 3], [3, 4, -1]]), np.array([[1, 0], [2, 1], [-1, 3]])
    sums = [(Kind.SUMS, groups, channels, units, 0) for groups, channels, units in ((1, 1, 20), (1, 6, 20), (3, 6, 21))]
    alike = [
        (kind, 1, channels, channels, direct)
        for kind, directs in ((Kind.PER_CHANNEL, (0,)), (Kind.LARGEST, (0,)), (Kind.MEAN, (0, 1)))
        for channels in (5, 37)
        for direct in directs
    ]
    for kind, groups, channels, units, direct in (*sums, *alike):
        step = RealStep(kind, 0, 1, 5, 4, channels, 3, 3, units, high=3, wide=2, groups=groups, direct=direct)
        inputs = generator.standard_normal((3, 5, 4, channels))
        weights = generator.standard_normal((3, 2, channels if kind != Kind.SUMS else channels // groups, units))
        stored = {Kind.PER_CHANNEL: [weights[..., 0]]}.get(kind, [])
        if kind == Kind.SUMS:
            matrices = weights.reshape(-1, groups, units // groups).swapaxes(0, 1)
            stored = [panels(matrices)]
        expected = np.zeros((3, 3, 3, units))
        for n, i, j in np.ndindex(3, 3, 3):
            seen = [
                (inputs[n, rows[i, y], columns[j, x]], weights[y, x])
                for y, x in np.ndindex(3, 2)
                if rows[i, y] >= 0 and columns[j, x] >= 0
            ]
            pixels = np.array([pixel for pixel, _ in seen])
            match kind:
                case Kind.LARGEST:
                    expected[n, i, j] = pixels.max(0)
                case Kind.MEAN:
                    expected[n, i, j] = pixels.sum(0) / (6 if direct else len(pixels))
                case Kind.PER_CHANNEL:
                    expected[n, i, j] = sum(pixel * weight[:, 0] for pixel, weight in seen)
                case Kind.SUMS:
                    for unit in range(units):
                        group = pixels.reshape(len(pixels), groups, -1)[:, unit * groups // units]
                        expected[n, i, j, unit] = sum(group[k] @ weight[:, unit] for k, (_, weight) in enumerate(seen))
        taps = np.concatenate([rows.ravel(), columns.ravel()])
        yield f"real_steps {kind.name} {groups} {channels} {direct}", *real_case([step], stored, inputs, expected, taps)
    turn = RealStep(Kind.TRANSPOSE, 0, 2, 5, 4, 1, 4, 5, 1)
    add = RealStep(Kind.ADD, 0, 3, 1, 4, 5, 1, 4, 5, other=2)
    scale = RealStep(Kind.SCALE, 3, 1, 1, 20, 1, 1, 20, 1)
    inputs = generator.standard_normal((100, 20))
    turned = inputs.reshape(-1, 5, 4).swapaxes(1, 2).reshape(-1, 4, 5)
    steps = [turn, add, scale]
    added = inputs.reshape(-1, 4, 5) + turned
    yield "real_steps transpose add scale", *real_case(steps, [], inputs, added, slots=[20, 20, 20, 20])


def panels(matrices):
    """Weights (groups, n, units) as the kernel has them: (groups, ⌈units / 16⌉, n, 16)."""
    groups, n, units = matrices.shape
    wide = np.zeros((groups, n, -(-units // 16) * 16))
    wide[..., :units] = matrices
    return wide.reshape(groups, n, -1, 16).swapaxes(1, 2)


def real_case(steps, weights, inputs, expected, taps=(), slots=None):
    """Arguments of `real_steps`, and what scaling and bounds, after every step but transposes, make of `expected`."""
    generator = np.random.default_rng(7)
    numbers = [part.ravel() for part in weights]
    for step in steps:
        if step.kind == Kind.TRANSPOSE:
            continue
        step.epilogue = sum(map(len, numbers))
        per_group = step.units // step.groups
        scaling = generator.standard_normal((2, step.groups, -(-per_group // 16) * 16))
        numbers += [np.array([-2, 3]), scaling.ravel()]
        factors, offsets = scaling[..., :per_group].reshape(2, step.units)
        shaped = expected.reshape(len(expected), -1, step.units)
        expected = (factors * shaped + offsets).clip(-2, 3)
    expected = expected.reshape(len(inputs), -1)
    return (
        np.array([step.row() for step in steps]),
        np.array(slots or [inputs[0].size, expected.shape[1]]),
        np.array(taps, np.int64),
        np.concatenate(numbers).astype(np.float32),
        np.zeros(0, np.uint64),
        inputs.reshape(len(inputs), -1).astype(np.float32),
        np.zeros(expected.shape, np.float32),
    ), expected


CASES = cases()
