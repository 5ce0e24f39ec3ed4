"""JSON for bytes that get signed: one encoding per value, and readers that accept no other type in its place."""

from __future__ import annotations

import json
from collections.abc import Mapping

from securefda.parse import json_value


def canonical_json(fields: Mapping[str, object]) -> bytes:
    """ASCII JSON with sorted keys and no blanks. The caller keeps floats out."""
    return json.dumps(fields, sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False).encode("ascii")


def load_object(data: bytes, *keys: str) -> dict[str, object]:
    """Parse an ASCII JSON object with exactly these keys.

    Raises:
        ValueError: anything else, however deeply nested.
    """
    return object_with(json_value(data.decode("ascii")), *keys)


def object_with(value: object, *keys: str) -> dict[str, object]:
    """Return ``value`` if it is an object with exactly these keys. Raises ValueError."""
    if not isinstance(value, dict) or set(value) != set(keys):
        raise ValueError("an object with exactly these keys is needed: " + ", ".join(keys))
    return value


def texts(value: object) -> dict[str, str]:
    """Return ``value`` if it is an object with string values only. Raises ValueError."""
    if not isinstance(value, dict):
        raise ValueError("an object is needed")
    return {key: text(item) for key, item in value.items()}


def items(value: object) -> list[object]:
    """Return ``value`` if it is a list. Raises ValueError."""
    if not isinstance(value, list):
        raise ValueError("a list is needed")
    return value


def text(value: object) -> str:
    """Return ``value`` if it is a string. Raises ValueError."""
    if not isinstance(value, str):
        raise ValueError("a string is needed")
    return value


def number(value: object) -> int:
    """Return ``value`` if it is an integer; ``true`` and ``1.0`` are none. Raises ValueError."""
    if type(value) is not int:
        raise ValueError("an integer is needed")
    return value
