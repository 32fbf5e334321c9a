"""JSON as someone makes it who wants to break a reader: one part replaced, left out or doubled."""

import copy
import math

JUNK = (
    *(None, True, -1, 0, 1, 2.5, 10**6, 10**30, math.nan, math.inf, -math.inf, "", "x", "\x1b[31m", "../x"),
    *([], {}, [[]], [1, 10**6, 10**6], {"is": "Dense"}, {"tensor": "0"}, [None] * 3, {"a": {"b": [1]}}),
)


def nested(depth):
    value = []
    for _ in range(depth):
        value = [value]
    return value


def places(value, path=()):
    """The path of every part of a JSON value."""
    yield path
    inside = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, part in inside:
        yield from places(part, (*path, key))


def crafted(content, random):
    """A copy of the content with one part that does not belong there."""
    content = copy.deepcopy(content)
    *path, last = random.choice([path for path in places(content) if path])
    holder = content
    for key in path:
        holder = holder[key]
    change = random.randrange(8)
    if change == 0:
        del holder[last]
    elif change == 1 and isinstance(holder, list):
        holder.insert(last, holder[last])
    elif change == 2:
        holder[last] = nested(500)
    elif change == 3 and isinstance(holder[last], int) and not isinstance(holder[last], bool):
        holder[last] += random.choice([-1, 1, 1000])
    elif change == 4 and isinstance(holder, dict):
        holder["more"] = random.choice(JUNK)
    else:
        holder[last] = random.choice(JUNK)
    return content
