"""The work of ``securefda audit report``: reads the logs, writes the page, and says what is wrong with them."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, Final

from securefda.audit.reading import NoLog, looks_like_log
from securefda.audit.reconcile.outcome import error_of, history_json, verdict_json
from securefda.audit.reconcile.run_verdict import finding_line
from securefda.audit.report.mapped import mapping_json, mapping_line, require_mappings
from securefda.audit.report.page import GENERATOR, render_page
from securefda.audit.report.signature import signed_page
from securefda.audit.report.sources import LogState, read_sources
from securefda.audit.report.words import verification_text
from securefda.audit.verification import Outcome
from securefda.disk import require_new
from securefda.errors import ConfigError
from securefda.operations.run_folder import replace_file
from securefda.site.kit import load_kit
from securefda.text import aligned, printable

_PAGE: Final = "audit.html"
_MARK: Final = f'<meta name="generator" content="{GENERATOR}">'.encode()
"""In the head of each page: a new page replaces an older one, and no other file."""
_HEAD_BYTES: Final = 1000


def write_audit_page(
    folder: Path,
    out: Path | None,
    run: str,
    roster: Path | None,
    made: datetime,
    *,
    require_all: bool | None = None,
    sign: Path | None = None,
    maps: Sequence[str] = (),
) -> Outcome:
    """Read the logs at or below ``folder`` and write the page. The outcome has the error that ``reconcile`` has.

    Args:
        folder: a run folder, a kit, a log, or any folder with logs in it.
        out: the page; None for ``audit.html`` in ``folder``, or in the current folder where that is a log.
        run: which run, where there are logs of several.
        roster: file of the roster that the user trusts.
        made: now, with a time zone.
        require_all: as of `securefda.audit.reconcile.reconciled_runs.reconcile_folder`.
        sign: the kit of the site that makes and signs the page, if it is to be signed.
        maps: names of texts under whose questions the facts stand, too.

    Raises:
        NoLog: there is none that can be read.
        ConfigError, CertificateError: there is no roster, an option does not fit, or another file has the page's name.
        SecureFdaError: the page cannot be written.
    """
    if not folder.is_dir():
        raise NoLog(folder, "is no folder", hint="name a run folder, a kit, or a folder with logs in it")
    page = out or (Path(_PAGE) if looks_like_log(folder) else folder / _PAGE)
    require_new("--out", page, replaces=lambda data: _MARK in data[:_HEAD_BYTES])
    require_mappings(maps)
    kit = None if sign is None else load_kit(sign, made)
    sources = read_sources(folder, run, roster, require_all=require_all)
    if kit is not None and kit.federation_id != sources.keys.federation:
        why = f"is the kit of another federation, {kit.federation_id}, not of {sources.keys.federation}"
        raise ConfigError(f"--sign {sign}", why, hint="name the kit of a site of this federation")
    rendered = render_page(sources, made, "" if kit is None else kit.site_id, maps).encode("utf-8")
    if kit is not None:
        rendered = signed_page(rendered, kit.federation_id, kit.site_id, kit.signing_key)
    replace_file(page, rendered)
    reconciled, verdict, disclosure = sources.reconciled, sources.verdict, sources.disclosure
    data = {
        "page": str(page),
        "run": sources.run,
        "federation": sources.keys.federation,
        "roster": {"digest": sources.keys.digest, "from": sources.keys.where_from, "ca": sources.keys.ca or None},
        "logs": [_log_data(log) for log in sources.logs],
        "missing": list(reconciled.missing),
        "compared": len(reconciled.logs) > 1,
        "findings": [*map(finding_line, reconciled.outcome.findings)],
        "disclosure": disclosure.to_json(),
        "training": {"known": sources.record is not None, "faults": sources.training},
        "mappings": [mapping_json(sources, name) for name in maps],
        "signed_by": None if kit is None else kit.site_id,
    }
    data |= verdict_json(verdict) | history_json(sources.history)
    error = error_of(sources.all_runs, None, everything=True)
    rows = [("integrity", printable(verdict.text)), ("disclosure", printable(disclosure.text))]
    rows += [("training", printable(fault)) for fault in sources.training]
    rows += [(name, printable(mapping_line(sources, name))) for name in maps]
    if error is not None:
        error.hint = f"{page} was written and says what is wrong"
        return Outcome(data, aligned(rows[1:]), error)
    return Outcome(data, f"{printable(str(page))}\n{aligned(rows)}")


def _log_data(log: LogState) -> dict[str, Any]:
    verified = log.verification
    return {
        "party": log.party,
        "folder": log.folder,
        "state": log.problem if log.problem and verified.finding is None else verification_text(verified),
        "sound": log.is_sound,
        "records": log.tables.records,
        "size": verified.size,
        "covered": verified.covered,
        "root": verified.root.hex(),
        "witnesses": list(verified.witnesses),
        "kept_messages": log.kept.to_json(),
    }
