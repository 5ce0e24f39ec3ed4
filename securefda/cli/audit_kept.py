"""The messages that are kept beside a log, compared with its records, for the audit commands."""

from __future__ import annotations

from itertools import islice

from securefda.audit.findings import Verification
from securefda.audit.kept_check import NOT_JUDGED, KeptVerdict, check_kept
from securefda.audit.reading import DamagedLog, LogFolder
from securefda.errors import ExitCode, SecureFdaError
from securefda.transport.statements import StatementReader


class EvidenceLost(SecureFdaError):
    """A log is what it should be, and the messages that are kept beside it as evidence are not."""

    exit_code = ExitCode.AUDIT


def kept_verdict(log: LogFolder, verification: Verification, reader: StatementReader, *, live: bool) -> KeptVerdict:
    """Compare the messages beside a log with those of its records that the verification vouches for.

    Args:
        log: the log.
        verification: what it is worth by itself.
        reader: under the roster of its run.
        live: whether it was being written before it was verified.
    """
    found = verification.finding
    is_whole = found is None or found.kind in ("missing-cosignature", "torn")
    bound = None if is_whole or found is None else found.index
    if bound == 0:
        return NOT_JUDGED
    try:
        return check_kept(
            log.folder,
            log.party,
            log.run,
            islice(log.records(), bound),
            reader.read,
            is_whole=is_whole,
            live_size=verification.size if live else None,
        )
    except DamagedLog:  # the verification says so, or the log was changed since
        return NOT_JUDGED
