"""T34: a thief holds a source's keys, but the federation has since revoked or renewed that source."""

from __future__ import annotations

import shutil
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path

import numpy as np

from securefda.bootstrap import credentials_of, endpoint_of
from securefda.errors import AuthenticationError
from securefda.protocol.messages import Header
from securefda.protocol.roster import Roster
from securefda.site.kit import STARTUP, load_kit
from securefda.transport.client import SourceChannel
from securefda.transport.limits import TransportSettings
from threat_model.adversaries.base import MaliciousAggregator
from threat_model.adversaries.masks import Vector64
from threat_model.sites import AggregatorSeat, known_update, samples_of


@dataclass(frozen=True, slots=True)
class StolenKit:
    """A copy of all files of a source, from before it was revoked or renewed.

    Powers: the source's signing key, TLS key and certificate, and the roster of that time with its signatures. It
    reaches the network; with ``put_back`` it also talks an operator into an old folder, or finds one who errs.
    Goal: a place in the federation.
    Source: rollback of revocation, as of old lists of revoked certificates.
    """

    threat = "T34"
    folder: Path

    @classmethod
    def steal(cls, site: Path, into: Path) -> StolenKit:
        """Copy the files of a site."""
        return cls(Path(shutil.copytree(site, into)))

    async def connects(self, address: str, now: datetime) -> bool:
        """Return whether the aggregator at an address accepts the thief."""
        kit = load_kit(self.folder, now)
        endpoint = replace(endpoint_of(kit), address=address)
        channel = SourceChannel(
            endpoint, credentials_of(kit), max_vector_bytes=64, settings=TransportSettings(heartbeat_s=20.0)
        )
        try:
            await channel.open()
        except AuthenticationError:
            return False
        finally:
            await channel.close()
        return True

    @staticmethod
    def put_back(startup_then: Path, site: Path) -> None:
        """Replace a site's ``startup/`` by an old one."""
        shutil.rmtree(site / STARTUP)
        shutil.copytree(startup_then, site / STARTUP)


class PlaceForThief(MaliciousAggregator):
    """A target that still counts a source whose key was stolen; the thief is its colluder.

    Powers: the target's key, the relay, and the stolen key: the colluder ``thief`` signs with it.
    Goal: a sum in which the thief is one of those that the others count on, less the thief's part.
    Source: Sybils by stolen identity (Douceur 2002).

    Args:
        seat: of the target.
        thief: roster index in the roster of the time before the theft was known.
        claim: what the header says that it goes by.
    """

    threat = "T34"

    def __init__(self, seat: AggregatorSeat, *, thief: int, claim: Roster) -> None:
        super().__init__(seat)
        self.thief, self._claim = thief, claim

    def header_for(self, index: int) -> Header | None:
        """Return a header over the roster that it claims, with the thief among the participants."""
        header = super().header_for(index)
        return header and replace(header, roster_digest=self._claim.digest())

    def attack(self) -> Vector64 | None:
        """Return the mean of the others, from a sum with the thief; None without such a sum."""
        total = self.aggregate()
        if total is None or self.thief not in self.heard.vectors:
            return None
        weight = samples_of(self.thief) / self.heard.header.max_samples
        own = np.asarray(known_update(self.thief, 1, self.model), np.float64)
        return replace(total, vector=total.vector - weight * own, weight=total.weight - weight).update
