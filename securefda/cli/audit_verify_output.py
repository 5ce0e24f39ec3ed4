"""How ``securefda audit verify`` says what it found."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from typing import Any

from securefda.audit.kept_check import KeptVerdict
from securefda.audit.reading import Inclusion
from securefda.audit.verification import Checked, error_of
from securefda.cli.output import Format, print_error, print_result
from securefda.text import aligned, printable

_MOST_LOST = 8
_PROVES = (
    "Proved of a log without a finding: its records are those that its party signed, in their order, none missing, and "
    "sites that cosigned it were shown no other log of this run. Not proved: that the party wrote down what happened."
)


def print_checked(output: Format, checked: Sequence[Checked]) -> int:
    """Print what was found, and return the exit code."""
    data = {"logs": [_json(one) for one in checked]}
    text = "\n\n".join([*(_text(one) for one in checked), _PROVES])
    error = error_of(checked)
    if error is None:
        print_result(output, data, text)
        return 0
    if output is Format.TXT:
        sys.stdout.write(f"{text}\n")
        sys.stdout.flush()
    return print_error(error, as_json=output is Format.JSON, data=data)


def _json(one: Checked) -> dict[str, Any]:
    found, fault = one.verification, one.fault
    return {
        "log": str(one.log.folder),
        "federation": one.name.federation,
        "party": one.name.party,
        "run": one.name.run,
        "roster": {
            "digest": one.keys.digest,
            "epoch": one.keys.roster.epoch,
            "file": str(one.keys.file),
            "from": one.keys.where_from,
        },
        "records": found.size,
        "covered": found.covered,
        "root": found.root.hex(),
        "cosigned_by": list(found.witnesses),
        "cosigners_needed": one.needed,
        "checkpoint": None if one.note is None else one.note.to_bytes().decode(),
        "being_written": one.live,
        "finding": None
        if fault is None
        else {
            "kind": fault.kind,
            "index": fault.index,
            "exact": fault.exact,
            "what": fault.what,
            "claim": fault.claim,
        },
        "kept_messages": {
            "judged": one.kept.judged,
            "messages": one.kept.messages,
            "findings": [{"kind": found.kind, "index": found.index, "what": found.what} for found in one.kept.findings],
        },
        "notes": list(one.notes),
        "record": None if one.inclusion is None else _inclusion_json(one.inclusion),
    }


def _inclusion_json(inclusion: Inclusion) -> dict[str, Any]:
    return {
        "index": inclusion.index,
        "entry": inclusion.entry.decode("ascii", "replace"),
        "leaf": inclusion.leaf.hex(),
        "size": inclusion.size,
        "root": inclusion.root.hex(),
        "proof": [step.hex() for step in inclusion.proof],
    }


def _text(one: Checked) -> str:
    parts = [aligned([(key, printable(value)) for key, value in _rows(one)])]
    if one.note is not None:
        parts.append(_indented("newest checkpoint", one.note.to_bytes().decode()))
    if one.inclusion is not None:
        parts.append(_inclusion_text(one.inclusion))
    return "\n".join(parts)


def _rows(one: Checked) -> Iterator[tuple[str, str]]:
    found, keys = one.verification, one.keys
    yield "log", str(one.log.folder)
    yield "of", f"{one.name.party} in federation {one.name.federation}, run {one.name.run}"
    yield "roster", f"epoch {keys.roster.epoch}, {keys.file}"
    yield "", f"digest {keys.digest}"
    yield "finding", "none" if one.fault is None else str(one.fault)
    yield "records", f"{found.size} read, {found.covered} covered by the newest checkpoint"
    if found.root:
        yield "root", found.root.hex()
        others = len(keys.public) - 1
        names = ", ".join(found.witnesses) or "nobody"
        yield "cosigned by", f"{names} ({len(found.witnesses)} of {others} other sites, {one.needed} needed)"
    yield from _kept_rows(one.kept)
    for note in one.notes:
        yield "note", note


def _kept_rows(kept: KeptVerdict) -> Iterator[tuple[str, str]]:
    if not kept.judged:
        yield "kept", "messages were not compared: nothing of the log can be trusted"
        return
    lost = len(kept.findings)
    yield "kept", f"{kept.messages} messages, {'as their records say' if not lost else f'{lost} findings'}"
    yield from (("evidence", str(found)) for found in kept.findings[:_MOST_LOST])
    if lost > _MOST_LOST:
        yield "", f"and {lost - _MOST_LOST} more; --format json lists all of them"


def _inclusion_text(inclusion: Inclusion) -> str:
    rows = [
        f"leaf {inclusion.leaf.hex()}",
        *(f"with {step.hex()}" for step in inclusion.proof),
        f"root {inclusion.root.hex()}",
    ]
    head = f"record {inclusion.index} is in the newest checkpoint, of {inclusion.size} records (RFC 9162, 2.1.3)"
    return "\n".join([_indented(head, "\n".join(rows)), _indented("it is", inclusion.entry.decode("ascii", "replace"))])


def _indented(head: str, text: str) -> str:
    return "\n".join([head, *(f"    {printable(line)}".rstrip() for line in text.rstrip("\n").split("\n"))])
