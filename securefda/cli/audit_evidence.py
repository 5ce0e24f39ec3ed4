"""What ``securefda audit verify-evidence`` prints."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

from securefda.audit.reconcile.evidence import Evidence
from securefda.audit.reconcile.evidence_file import Judged, NoProof
from securefda.cli.output import Format, print_error, print_result
from securefda.text import aligned, printable


def print_judged(output: Format, evidence: Evidence, judged: Sequence[Judged]) -> int:
    """Print what is proved, and return the exit code: 0 where every claim is."""
    data = {
        "federation": evidence.federation,
        "run": evidence.run,
        "claims": [_json(one) for one in judged],
    }
    text = "\n\n".join(_text(one) for one in judged)
    lost = [one for one in judged if not one.proved]
    if judged and not lost:
        print_result(output, data, text)
        return 0
    if output is Format.TXT and text:
        sys.stdout.write(f"{text}\n")
        sys.stdout.flush()
    what = f"{lost[0].exhibit.kind}: {lost[0].why_not}" if lost else "there is no claim in it"
    error = NoProof(f"{len(lost)} of {len(judged)} claims are not proved: {what}", hint="accuse nobody by it")
    return print_error(error, as_json=output is Format.JSON, data=data)


def _text(one: Judged) -> str:
    rows = [
        ("claim", one.exhibit.kind),
        ("accused", one.exhibit.accused),
        ("proved" if one.proved else "not proved", one.proved or one.why_not),
        ("said with it", one.exhibit.what),
    ]
    return aligned([(key, printable(value)) for key, value in rows])


def _json(one: Judged) -> dict[str, Any]:
    exhibit = one.exhibit
    return {
        "kind": exhibit.kind,
        "accused": exhibit.accused,
        "proved": bool(one.proved),
        "what": one.proved or one.why_not,
        "said": exhibit.what,
        "round": exhibit.round,
        "attempt": exhibit.attempt,
        "session": exhibit.session,
        "messages": len(exhibit.messages),
        "checkpoints": len(exhibit.checkpoints),
    }
