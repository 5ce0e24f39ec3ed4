"""T31: wrong shares in an answer to the request to unmask."""

from __future__ import annotations

from dataclasses import replace

from securefda.protocol.messages import MasterShare, Parcel, SelfMaskShare, Unmask
from securefda.protocol.shamir import PRIME, SHARE_BYTES
from securefda.source.source_run import SourceReporter, SourceSite
from threat_model.adversaries.sources import MaliciousSource


class WrongShares(MaliciousSource):
    """Answers the request to unmask with false shares: each is well-formed, and off by one.

    Powers: the real key of its site, and the shares that it holds of others.
    Goal: a wrong sum that the aggregator takes for the right one; or else that somebody else is accused.
    Source: Bonawitz et al. 2017, section 6.2, leaves a wrong share undetected; Shamir's scheme does not notice it
    (McEliece and Sarwate 1981).

    Args:
        site: its site.
        reporter: hears nothing of it.
        of: roster index of the only owner whose share is wrong; all of them by default.
    """

    threat = "T31"

    def __init__(self, site: SourceSite, reporter: SourceReporter, *, of: int | None = None) -> None:
        super().__init__(site, reporter)
        self._of = of

    def answers(self, parcel: Parcel, honest: list[Parcel]) -> list[Parcel]:  # noqa: ARG002 - of the base
        """Return the honest answers, except for the shares."""
        return [self._with_wrong_shares(one) for one in honest]

    def _with_wrong_shares(self, parcel: Parcel) -> Parcel:
        body = parcel.message.body
        if not isinstance(body, Unmask):
            return parcel
        return self.resigned(parcel, Unmask(tuple(self._wrong(share) for share in body.shares)))

    def _wrong(self, share: SelfMaskShare | MasterShare) -> SelfMaskShare | MasterShare:
        if self._of not in (None, share.owner):
            return share
        value = (int.from_bytes(share.share, "big") + 1) % PRIME
        return replace(share, share=value.to_bytes(SHARE_BYTES, "big"))
