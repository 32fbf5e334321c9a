"""JSON under a checksum: a changed bit is noticed."""

import hashlib
import json
import re
from collections.abc import Mapping
from typing import Any

_SEAL = re.compile(rb'\{"sha256": "([0-9a-f]{64})", ')


def with_checksum(content: Mapping[str, Any]) -> bytes:
    """The content as JSON that begins with the checksum of all that follows; raises where a number is not finite."""
    rest = (json.dumps(content, ensure_ascii=False, allow_nan=False)[1:] + "\n").encode()
    return f'{{"sha256": "{hashlib.sha256(rest).hexdigest()}", '.encode() + rest


def without_checksum(data: bytes) -> dict[str, Any]:
    """What `with_checksum` was given."""
    seal = _SEAL.match(data)
    if seal is None:
        raise ValueError('it must begin with {"sha256": and the checksum of what follows')
    if hashlib.sha256(data[seal.end() :]).hexdigest().encode() != seal[1]:
        raise ValueError("its checksum does not fit its content")
    try:
        content: dict[str, Any] = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"it is not JSON: {error}") from error
    del content["sha256"]
    return content
