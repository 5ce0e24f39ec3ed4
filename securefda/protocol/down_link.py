"""The model and the target's update on their way to the sources, in 4 or 2 bytes a parameter.

A vector that is to travel in 2 bytes is rounded first, at the target: every site then computes with the rounded
numbers, at every level of visibility. A digest is always that of the float32 vector: to widen a number changes nothing.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from securefda.errors import ConfigError
from securefda.protocol.encoding import Vector, vector_from_wire, vector_to_wire
from securefda.protocol.header import DownLink
from securefda.protocol.messages import Body, Goodbye, Header

HALF_STEP = {DownLink.FLOAT32: 0.0, DownLink.BFLOAT16: 2.0**-8, DownLink.FLOAT16: 2.0**-11}
"""How far rounding moves a number at most, relative to it; below the normal numbers of the format by less than 1e-7."""

_LOW_HALF = 0xFFFF


def down_link_of(body: Body) -> DownLink:
    """In what the vectors beside a message travel."""
    return body.down_link if isinstance(body, Header | Goodbye) else DownLink.FLOAT32


def rounded(vector: Vector, down_link: DownLink, what: str) -> Vector:
    """A float32 vector rounded to the nearest numbers of the format, ties to even; itself where that is float32.

    Args:
        vector: finite.
        down_link: the format.
        what: the vector is, for the error.

    Raises:
        ConfigError: ``session.down-link``, a number is beyond the largest of the format.
    """
    if down_link is DownLink.FLOAT32:
        return vector
    narrowed = _narrowed(vector, down_link)
    widened = _widened(narrowed, down_link)
    if not np.all(np.isfinite(widened)):
        largest = float(np.max(np.abs(vector)))
        raise ConfigError(
            "session.down-link",
            f"{what} has a number of {largest:.3g}, beyond {down_link.label}",
            hint='set session.down-link = "float32" for a new run, or lower the learning rate',
        )
    return widened


def packed(data: bytes | bytearray | memoryview, down_link: DownLink) -> memoryview:
    """A float32 vector of wire bytes as it travels, without a copy where that is float32.

    Raises:
        ValueError: a number of it is none of the format: it was not rounded.
    """
    if down_link is DownLink.FLOAT32:
        return memoryview(data).cast("B")
    vector = vector_from_wire(data)
    narrowed = _narrowed(vector, down_link)
    # Rounded on its way, it would be another vector than the one whose digest the message names.
    if _widened(narrowed, down_link).tobytes() != vector.tobytes():
        raise ValueError(f"a vector holds numbers that are not {down_link.label}")
    return np.ascontiguousarray(narrowed, dtype="<u2").data.cast("B")


def unpacked(data: bytes | bytearray | memoryview, down_link: DownLink) -> bytes | bytearray | memoryview:
    """What travelled as the wire bytes of a float32 vector; the data themselves where they are that.

    Raises:
        ValueError: half a number is missing.
    """
    if down_link is DownLink.FLOAT32:
        return data
    if len(data) % 2:
        raise ValueError(f"{len(data)} bytes are not {down_link.label} numbers")
    return vector_to_wire(_widened(np.frombuffer(data, "<u2").astype(np.uint16, copy=False), down_link))


def packed_length(nbytes: int, down_link: DownLink) -> int:
    """Bytes in which a float32 vector of so many bytes travels."""
    return nbytes if down_link is DownLink.FLOAT32 else nbytes // 2


def _narrowed(vector: Vector, down_link: DownLink) -> NDArray[np.uint16]:
    """The nearest numbers of the format as their bits; what is beyond it becomes infinite."""
    if down_link is DownLink.FLOAT16:
        with np.errstate(over="ignore"):
            return vector.astype(np.float16).view(np.uint16)
    bits = vector.view(np.uint32)
    # Half of what is cut off, less one bit where the kept part is even: to the nearest, ties to even.
    odd = (bits >> np.uint32(16)) & np.uint32(1)
    return ((bits + np.uint32(_LOW_HALF >> 1) + odd) >> np.uint32(16)).astype(np.uint16)


def _widened(narrowed: NDArray[np.uint16], down_link: DownLink) -> Vector:
    if down_link is DownLink.FLOAT16:
        return narrowed.view(np.float16).astype(np.float32)
    return (narrowed.astype(np.uint32) << np.uint32(16)).view(np.float32)
