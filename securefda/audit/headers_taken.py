"""Under which header a party did what it did in a session: one that its own log has. Pure.

The target chooses session ids and can sign several headers with the same one, and others can keep any of them. So a
party is judged by a header only where its log has that one for the session, and no other.
"""

from __future__ import annotations

from securefda.audit.claims import is_of_run
from securefda.audit.members import Members
from securefda.audit.records import Record
from securefda.audit.spine import SignedHeader, Spine


class HeadersTaken:
    """Follows which headers each log has; the records of one log come in their order.

    Args:
        members: of the federation.
        spine: the messages that were kept.
    """

    def __init__(self, members: Members, spine: Spine) -> None:
        self._members, self._spine = members, spine
        self._digests: dict[tuple[str, str], str] = {}

    def see(self, record: Record) -> None:
        """Take a record; all but those of headers that a source received or the target sent are passed over."""
        entry = record.entry
        direction = "sent" if record.party == self._members.target else "received"
        if (entry.type, entry.direction) == ("Header", direction):
            key = record.party, entry.session
            if self._digests.setdefault(key, entry.digest) != entry.digest:
                self._digests[key] = ""  # more than one: which it went by, its log does not say

    def of(self, party: str, session: str) -> SignedHeader | None:
        """The header of a party's session; None where its log has none or several, or nobody kept it, or it is not of
        the roster.
        """
        header = self._spine.all_headers.get(self._digests.get((party, session), ""))
        return header if header is not None and is_of_run(header.said, self._members) else None
