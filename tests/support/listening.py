"""The sockets on which a process and its descendants listen, as the kernel has them."""

from __future__ import annotations

from contextlib import suppress
from ipaddress import IPv4Address, IPv6Address
from pathlib import Path

_LISTENS, _UNBOUND = "0A", "07"
_UNIX_LISTENS = "00010000"


def _descendants(process: int) -> list[int]:
    parents = {}
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(FileNotFoundError, ProcessLookupError):
            parents[int(folder.name)] = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
    found = [process]
    for one in found:
        found += [child for child, parent in parents.items() if parent == one]
    return found


def _sockets(process: int) -> set[str]:
    found = set()
    with suppress(FileNotFoundError, ProcessLookupError):
        for link in Path(f"/proc/{process}/fd").iterdir():
            with suppress(FileNotFoundError):
                found.add(str(link.readlink()).removeprefix("socket:[").removesuffix("]"))
    return found


def _address(text: str) -> str:
    words = [int(text[at : at + 8], 16).to_bytes(4, "little") for at in range(0, len(text), 8)]
    raw = b"".join(words)
    found = IPv4Address(raw) if len(raw) == 4 else IPv6Address(raw)
    return str(getattr(found, "ipv4_mapped", None) or found)


def listening(process: int) -> set[tuple[str, str, int]]:
    """Kind, address and port of every socket that waits for others; a Unix socket has its path as its address."""
    own = set().union(*map(_sockets, _descendants(process)))
    found = set()
    for kind, state in (("tcp", _LISTENS), ("tcp6", _LISTENS), ("udp", _UNBOUND), ("udp6", _UNBOUND)):
        for line in Path(f"/proc/net/{kind}").read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == state and fields[9] in own:
                address, _, port = fields[1].partition(":")
                found.add((kind.removesuffix("6"), _address(address), int(port, 16)))
    for line in Path("/proc/net/unix").read_text().splitlines()[1:]:
        fields = line.split()
        if fields[3] == _UNIX_LISTENS and fields[6] in own:
            found.add(("unix", fields[7] if len(fields) > 7 else "", 0))
    return found
