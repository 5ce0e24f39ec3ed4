"""The machine's resources: usable processor cores, and memory settings of this process."""

from __future__ import annotations

import ctypes
import gc
import os
import resource
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import cast


def usable_cores() -> int:
    """Return how many cores this process may run on: fewer than the machine has, where a container bounds them."""
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:  # macOS and Windows cannot tell
        return os.cpu_count() or 1


OWN_MAPPING_BYTES = 8 << 20
"""Blocks from this size on are mapped one by one, and go back to the system when they are freed."""

KEPT_BYTES = 64 << 20
"""Free memory that may stay at the end of the heap, for allocations that follow at once."""

_ARENAS = 1
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD, _M_ARENA_MAX = -1, -3, -8  # of <malloc.h>
_OPTIONS = ((_M_MMAP_THRESHOLD, OWN_MAPPING_BYTES), (_M_TRIM_THRESHOLD, KEPT_BYTES), (_M_ARENA_MAX, _ARENAS))


def map_large_blocks() -> bool:
    """Map large blocks of memory one by one from now on, if the C library has a setting for it (glibc).

    By itself it raises that threshold up to 32 MiB as blocks are freed. The vectors of a round then share a heap with
    small objects that outlive them, and a source of a model of 20 MB keeps holes of some more such vectors.
    All threads share one heap: with one each, every message that a new thread handles would leave its own holes.
    Smaller blocks, as activations are, stay on the heap: mapping them again for each batch doubles the time of a step.

    Returns:
        Whether it is so; False changes nothing but the process's peak memory.
    """
    mallopt = _of_libc("mallopt")
    return mallopt is not None and all(mallopt(option, value) == 1 for option, value in _OPTIONS)


def give_free_memory_back() -> None:
    """Return free pages to the system, also those between used ones; does nothing if the C library cannot.

    For the moment after a vector has come over the network, in chunks that were each a block on the heap.
    """
    malloc_trim = _of_libc("malloc_trim")
    if malloc_trim is not None:
        malloc_trim(0)


@contextmanager
def without_collections() -> Iterator[None]:
    """Disable garbage collection in this block, and exempt what it leaves: for imports, whose modules stay.

    PyTorch's import makes half a million objects that all stay. Python would search them a few hundred times, for a
    fifth of a second, and again whenever it searches everything.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        if was_enabled:
            gc.enable()


def _of_libc(name: str) -> Callable[..., int] | None:
    try:
        return cast(Callable[..., int], getattr(ctypes.CDLL(None), name))
    except (AttributeError, OSError, TypeError):
        return None


MOST_DESCRIPTORS = 1 << 16
"""As many as a process needs with some thousand sources; the hard limit may be a thousand times higher."""


def raise_descriptor_limit() -> int:
    """Let this process open as many files and connections as the system allows it, and return how many."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = MOST_DESCRIPTORS if hard == resource.RLIM_INFINITY else min(hard, MOST_DESCRIPTORS)
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return MOST_DESCRIPTORS if soft == resource.RLIM_INFINITY else soft
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    except (OSError, ValueError):  # macOS bounds it further than the hard limit says
        return soft
    return wanted
