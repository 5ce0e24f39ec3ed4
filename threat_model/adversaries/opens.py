"""What the attacker's aggregator derives from the messages: shares, secrets, masks, single inputs, sums."""

from __future__ import annotations

from collections.abc import Collection

import numpy as np

from securefda.protocol import agreement
from securefda.protocol.agreement import KeyPair
from securefda.protocol.hybrid import Half, recovery_values
from securefda.protocol.masking import RingVector
from securefda.protocol.messages import MasterShare, SelfMaskShare
from securefda.protocol.secret import Secret
from threat_model.adversaries.heard import Heard
from threat_model.adversaries.masks import Decoded, Vector64, decode, open_secret, peel
from threat_model.adversaries.sources import ColludingSource

ShareKind = type[SelfMaskShare] | type[MasterShare]


class Opens:
    """Everything that follows from one session and from the colluders' secrets.

    Attributes:
        sessions: all that was heard, one entry per attempt; ``heard`` is the last.
        colluders: the colluding sources, by roster index.
    """

    sessions: list[Heard]
    colluders: dict[int, ColludingSource]

    @property
    def heard(self) -> Heard:
        """The session in progress, or the last one."""
        return self.sessions[-1]

    def held_shares(self, owner: int, kind: ShareKind) -> dict[int, bytes]:
        """Return the shares of one secret of a source that came in, by holder, including those of colluders."""
        shares = {
            holder: share.share
            for holder, answer in self.heard.unmaskings.items()
            for share in answer.body.shares
            if isinstance(share, kind) and share.owner == owner
        }
        for holder, colluder in self.colluders.items():
            pair = colluder.secrets_of(self.heard.session_id).shares.get(owner)
            if pair is not None:
                shares[holder] = (pair.master if kind is MasterShare else pair.self_secret).reveal()
        return shares

    def master_of(self, owner: int) -> Secret | None:
        """Return a source's master: a colluder's own, or from t shares; None if fewer are held."""
        if owner in self.colluders:
            return self.colluders[owner].secrets_of(self.heard.session_id).master
        return open_secret(self.held_shares(owner, MasterShare), self.heard.header.share_threshold)

    def self_secret_of(self, owner: int) -> Secret | None:
        """Return a source's self secret: a colluder's own, or from t shares; None if fewer are held."""
        if owner in self.colluders:
            return self.colluders[owner].secrets_of(self.heard.session_id).self_secret
        return open_secret(self.held_shares(owner, SelfMaskShare), self.heard.header.share_threshold)

    def mask_pair_of(self, owner: int, *, seen_by: int) -> KeyPair | None:  # noqa: ARG002 - for overriding
        """Return the mask key pair of a source as another one sees it, if its master is known."""
        master = self.master_of(owner)
        return agreement.mask_pair(master, own=owner, ctx=self.heard.views[owner].ctx) if master else None

    def master_in_box(self, owner: int, *, seen_by: int) -> Secret | None:  # noqa: ARG002 - for overriding
        """Return the master behind what another source found in the box of this one, if it is known."""
        return self.master_of(owner)

    def pair_seeds_of(self, owner: int) -> dict[int, Secret]:
        """Return every known seed of a pairwise mask in the input of a source, by partner."""
        view = self.heard.views[owner]
        own, ctx2 = self.mask_pair_of(owner, seen_by=owner), view.ctx2
        seeds: dict[int, Secret] = {}
        for partner in sorted(view.partners(self.heard.bundles[owner].body.nonce)):
            theirs = self.mask_pair_of(partner, seen_by=owner)
            halves = self._halves_of_seed(owner, partner)
            if self.heard.header.is_hybrid and halves is None:
                continue
            if own is not None:
                key = view.keys[partner].mask_key
                seeds[partner] = agreement.pair_seed(own, key, own=owner, peer=partner, ctx2=ctx2, halves=halves)
            elif theirs is not None:
                key = view.keys[owner].mask_key
                turned = halves and halves[::-1]
                seeds[partner] = agreement.pair_seed(theirs, key, own=partner, peer=owner, ctx2=ctx2, halves=turned)
        return seeds

    def _halves_of_seed(self, owner: int, partner: int) -> tuple[Secret, Secret] | None:
        """Return both halves of a hybrid seed, that of ``owner`` first; None if one is unknown.

        A master secret gives its owner's half, and the other one if the other source sent its recovery value.
        """
        found: dict[int, Secret] = {}
        for one, other in ((owner, partner), (partner, owner)):
            master = self.master_in_box(one, seen_by=owner) if self.heard.header.is_hybrid else None
            if master is None:
                continue
            half = Half.of_master(master, owner=one, peer=other, ctx1=self.heard.views[owner].ctx1)
            found[one] = half.half
            view, sent = self.heard.views[other], self.heard.recovery.get(other)
            if sent and other not in found:
                peers = view.partners(self.heard.bundles[other].body.nonce)
                value = recovery_values(sent, peers).get(one)
                if value:
                    found[other] = half.opened(value)
        return (found[owner], found[partner]) if len(found) == 2 else None

    def estimate(self, owner: int) -> Vector64 | None:
        """Return the best guess of a source's update, (m,): its input without every known mask; None without an
        input.
        """
        if owner not in self.heard.vectors:
            return None
        return decode(self.heard.header, self._peeled(owner, self.pair_seeds_of(owner))).update

    def aggregate(self) -> Decoded | None:
        """Return the sum over all inputs, as an honest aggregator would open it; None if a self mask is unknown."""
        return self.sum_over(self.heard.vectors)

    def sum_over(self, owners: Collection[int]) -> Decoded | None:
        """Return the sum over some inputs, without the masks that they share; None if a self mask is unknown."""
        if not owners or any(self.self_secret_of(owner) is None for owner in owners):
            return None
        total = np.zeros_like(self.heard.vectors[min(owners)])
        for owner in owners:
            seeds = self.pair_seeds_of(owner)
            total += self._peeled(owner, {peer: seed for peer, seed in seeds.items() if peer not in owners})
        return decode(self.heard.header, total)

    def _peeled(self, owner: int, pair_seeds: dict[int, Secret]) -> RingVector:
        secret = self.self_secret_of(owner)
        ctx2 = self.heard.views[owner].ctx2
        seed = agreement.self_seed(secret, own=owner, ctx2=ctx2) if secret else None
        return peel(self.heard.vectors[owner], own=owner, self_seed=seed, pair_seeds=pair_seeds)
