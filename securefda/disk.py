"""What files need beyond reading and writing: contents that are whole, a name that is on the disk, an own number.

Every function raises OSError; the caller says in words of its own what could not be written.
"""

from __future__ import annotations

import fcntl
import os
import secrets
from pathlib import Path

_GET_GENERATION = 0x80087601  # FS_IOC_GETVERSION of Linux on 64-bit x86 and ARM


def write_file(path: Path, data: bytes, mode: int) -> None:
    """Write a file so that readers, and a machine that loses power, find the old contents or the new.

    The new contents are on the disk, under their name, when this returns. A link is replaced and not followed.

    Args:
        path: in a folder that exists.
        data: all that is in it from then on.
        mode: its permission bits from its first moment on, less the umask: a key is at no time open to others.

    Raises:
        OSError: the disk is full, or the folder is missing or not writable; the old file is untouched.
    """
    partial = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    descriptor = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        partial.replace(path)
    except BaseException:
        partial.unlink(missing_ok=True)
        raise
    sync_folder(path.parent)


def make_folder(path: Path, mode: int = 0o700) -> None:
    """Make a folder, with those above it, each of this mode and on the disk under its name; one that exists stays.

    Raises:
        OSError: it cannot be made, or a file is in its place.
    """
    if path.is_dir():
        return
    # Not mkdir(parents=True): that gives the folders above the default mode.
    for folder in (*reversed(path.parents), path):
        if not folder.is_dir():
            folder.mkdir(mode=mode, exist_ok=True)
            sync_folder(folder.parent)


def sync_folder(folder: Path) -> None:
    """Force to the disk which names the folder holds. Raises OSError."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def file_number(descriptor: int) -> str:
    """What the file system calls this file: stays when it is renamed or written, differs for every copy.

    The number alone would be given to another file once this one is deleted, so the time of birth or the generation
    goes with it where the file system tells one. The device is left out: it changes when a machine restarts.
    """
    status = os.fstat(descriptor)
    born = getattr(status, "st_birthtime", None)
    return f"{status.st_ino}.{_generation(descriptor) if born is None else born}"


def _generation(descriptor: int) -> int:
    answer = bytearray(8)
    try:
        fcntl.ioctl(descriptor, _GET_GENERATION, answer)
    except OSError:  # this file system has none
        return 0
    return int.from_bytes(answer, "little")
