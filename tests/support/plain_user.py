"""Root as a user like others: what permissions a file has then counts, as it does for the users of a machine."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterator
from contextlib import contextmanager

_VERSION = 0x20080522
_PR_GET_SECUREBITS, _PR_SET_SECUREBITS = 27, 28
_ACCESS_ASKS_FOR_WHAT_HOLDS = 1 << 2  # SECBIT_NO_SETUID_FIXUP; without it access() asks what root could take back
_PASSES_PERMISSIONS = 1 << 1 | 1 << 2  # CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH


class _Header(ctypes.Structure):
    _fields_ = (("version", ctypes.c_uint32), ("pid", ctypes.c_int))


class _Set(ctypes.Structure):
    _fields_ = (("effective", ctypes.c_uint32), ("permitted", ctypes.c_uint32), ("inheritable", ctypes.c_uint32))


@contextmanager
def plain_user() -> Iterator[None]:
    """In this thread, until the block ends. The interpreter may lie where no other user can read it, so uid 0 stays."""
    if os.geteuid() != 0:
        yield
        return
    libc = ctypes.CDLL(None, use_errno=True)
    header, sets = _Header(_VERSION, 0), (_Set * 2)()

    def call(name: str, *arguments: object) -> int:
        found: int = getattr(libc, name)(*arguments)
        if found < 0:
            raise OSError(ctypes.get_errno(), name)
        return found

    call("capget", ctypes.byref(header), sets)
    bits = call("prctl", _PR_GET_SECUREBITS, 0, 0, 0, 0)
    before = sets[0].effective
    sets[0].effective = before & ~_PASSES_PERMISSIONS
    call("prctl", _PR_SET_SECUREBITS, bits | _ACCESS_ASKS_FOR_WHAT_HOLDS, 0, 0, 0)
    call("capset", ctypes.byref(header), sets)
    try:
        yield
    finally:
        sets[0].effective = before
        call("capset", ctypes.byref(header), sets)
        call("prctl", _PR_SET_SECUREBITS, bits, 0, 0, 0)
