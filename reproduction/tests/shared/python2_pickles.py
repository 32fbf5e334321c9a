"""Arrays and what holds them, as Python 2 pickled them; and a pickle that runs a program."""

import os

import numpy as np


class Malicious:
    """Its pickle, where it is trusted, runs a command."""

    def __init__(self, command):
        self.command = command

    def __reduce__(self):
        return os.system, (self.command,)


def number(value):
    return b"J" + int(value).to_bytes(4, "little", signed=True)


def text(content):
    return b"U" + bytes([len(content)]) + content


def array(content):
    """A numpy array."""
    content = np.asarray(content)
    shape = b"".join(map(number, content.shape))
    raw = content.tobytes()
    kind = content.dtype.str[1:].encode()
    order = b"|" if content.itemsize == 1 else b"<"
    return (
        b"cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\nK\x00\x85U\x01b\x87R(K\x01(" + shape + b"t"
        b"cnumpy\ndtype\nU\x02" + kind + b"K\x00K\x01\x87R(K\x03" + text(order) + b"NNN"
        b"J\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb\x89T" + len(raw).to_bytes(4, "little") + raw + b"tb"
    )


def numbers(values):
    """A list of integers."""
    return b"](" + b"".join(map(number, values)) + b"e"


def mapping(items):
    """A dict of bytes to what is pickled already."""
    return b"}(" + b"".join(text(name) + content for name, content in items.items()) + b"u"


def whole(content):
    """A complete pickle."""
    return b"\x80\x02" + content + b"."
