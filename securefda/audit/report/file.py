"""The work of ``securefda audit report``: reads the logs, writes the page, and says what is wrong with them."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Final

from securefda.audit.reading import NoLog, looks_like_log
from securefda.audit.report.page import render_page
from securefda.audit.report.sources import Sources, read_sources
from securefda.errors import ConfigError, ExitCode, SecureFdaError
from securefda.operations.run_folder import replace_file

_PAGE: Final = "audit.html"


class AuditPageFinding(SecureFdaError):
    """The page was written, and the logs that it is made from are not what they should be."""

    exit_code = ExitCode.AUDIT


@dataclass(frozen=True, slots=True)
class Written:
    """A page, and what it is made from."""

    page: Path
    sources: Sources


def write_audit_page(folder: Path, out: Path | None, run: str, roster: Path | None, made: datetime) -> Written:
    """Read the logs at or below ``folder`` and write the page.

    Args:
        folder: a run folder, a kit, a log, or any folder with logs in it.
        out: the page; None for ``audit.html`` in ``folder``, or in the current folder where that is a log.
        run: which run, where there are logs of several.
        roster: file of the roster that the user trusts.
        made: now, with a time zone.

    Raises:
        NoLog: there is none that can be read.
        ConfigError, CertificateError: there is no roster, or an option does not fit.
        SecureFdaError: the page cannot be written.
    """
    if not folder.is_dir():
        raise NoLog(folder, "is no folder", hint="name a run folder, a kit, or a folder with logs in it")
    page = out or (Path(_PAGE) if looks_like_log(folder) else folder / _PAGE)
    if page.is_dir() or not page.parent.is_dir():
        raise ConfigError("--out", f"{page} is {'a folder' if page.is_dir() else 'in no folder that is there'}")
    sources = read_sources(folder, run, roster)
    replace_file(page, render_page(sources, made).encode("utf-8"))
    return Written(page, sources)
