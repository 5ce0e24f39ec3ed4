"""The charges in a site's audit logs: its ledgers must hold them, also if a backup was put back."""

from __future__ import annotations

from pathlib import Path

from securefda.audit.journal import logs_folder
from securefda.audit.reading import events_in, find_logs
from securefda.privacy.ledger_storage import Head, Recorded


def logged_charges(kit: Path, site_id: str) -> tuple[Recorded, ...]:
    """Return every charge that the logs in a site's kit record, of all its data sets.

    Args:
        kit: whose logs; there may be none.
        site_id: of its owner; logs of other sites that lie there are left out.

    Raises AuditError if a log cannot be read.
    """
    logs = logs_folder(kit)
    charges = []
    for folder in find_logs(logs) if logs.exists() else ():
        for record in events_in(folder, "ledger-updated"):
            if record.party == site_id and (dp := record.entry.dp) is not None:
                head = Head(dp.ledger_rows, bytes.fromhex(dp.ledger_digest))
                charges.append(Recorded(record.run, record.entry.round, int(record.moment.timestamp()), head))
    return tuple(charges)
