"""Who makes up an attempt, and the header that opens it."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from hashlib import sha256

from securefda.adaptation import RoundPlan
from securefda.errors import QuorumLost
from securefda.rounds.run_settings import RunSettings, TargetSite
from securefda.rounds.site import vector_to_wire
from securefda.rounds.target import TargetRound, published_terms
from securefda.rounds.terms import terms_of
from securefda.secagg.messages import NO_CONTEXT, SESSION_ID_BYTES, Header, Layer, Signed, Visibility
from securefda.secagg.parameters import default_threshold, threshold_is_sound
from securefda.secagg.secret import draw
from securefda.training import Vector


@dataclass(frozen=True, slots=True)
class Quorum:
    """Which sets of sources can make an attempt under a run's settings."""

    settings: RunSettings

    @property
    def is_masked(self) -> bool:
        """Whether updates travel masked; in clear nothing is shared, and one source is enough."""
        return self.settings.visibility is not Visibility.INDIVIDUAL

    def threshold(self, n: int) -> int:
        """t of a session of n sources.

        Raises:
            ValueError: the default formula has no sound threshold for n.
        """
        if not self.is_masked:
            return 1
        return self.settings.threshold or default_threshold(n, self.settings.k_min, self.settings.n_c)

    def is_met(self, n: int) -> bool:
        """Whether n sources can make a session in which each hides among ``k_min`` others."""
        if not self.is_masked:
            return n >= 1
        if n - 1 - self.settings.n_c < self.settings.k_min:
            return False
        try:
            threshold = self.threshold(n)
            return threshold_is_sound(threshold, n, self.settings.n_c) and threshold >= self.settings.smallest_sum
        except ValueError:
            return False

    def cohorts(self, n: int) -> tuple[int, int]:
        """Size and quorum of the cohorts of a session of n sources; zeros at any other visibility than ``cohort``.

        A cohort must not need more members than a session needs sources.
        """
        if self.settings.visibility is not Visibility.COHORT:
            return 0, 0
        return min(self.settings.cohort_size, self.threshold(n)), self.settings.smallest_sum

    def error(self, site: TargetSite, present: Collection[int]) -> QuorumLost:
        """What ends a run in which too few sources report; it names those that are missing."""
        needed = self.settings.smallest_sum if self.is_masked else 1
        have = [site.name(index) for index in sorted(present)]
        missing = [site.name(index) for index in sorted(site.sources - set(present))]
        return QuorumLost("join", max(needed, self.settings.threshold), have, missing, hint="start the missing sources")


@dataclass(frozen=True, slots=True)
class Place:
    """Where in a run an attempt stands, and what it continues."""

    run_id: bytes
    round: int
    attempt: int
    previous_result_digest: bytes


def make_header(
    site: TargetSite,
    settings: RunSettings,
    place: Place,
    *,
    plan: RoundPlan,
    target: TargetRound | None,
    model: Vector,
    participants: Collection[int],
) -> Signed[Header]:
    """Sign the header of an attempt, with a fresh session id."""
    quorum = Quorum(settings)
    cohort_size, cohort_quorum = quorum.cohorts(len(participants))
    body = Header(
        run_id=place.run_id,
        round=place.round,
        attempt=place.attempt,
        visibility=settings.visibility,
        rule=terms_of(plan),
        target=published_terms(target, plan, settings.visibility),
        layers=tuple(Layer(name, shape, settings.clip) for name, shape in site.trainer.layers),
        architecture_digest=site.trainer.architecture_digest,
        model_digest=sha256(vector_to_wire(model)).digest(),
        roster_digest=site.roster.digest(),
        participants=tuple(sorted(participants)),
        threshold=quorum.threshold(len(participants)),
        modulus_bits=settings.modulus_bits,
        n_max=2 * len(site.sources),  # room to spare: a sum that is noise then leaves the range at once
        max_samples=settings.max_samples,
        training_deadline_ms=round(1000 * settings.training_deadline_s),
        phase_deadline_ms=round(1000 * settings.phase_deadline_s),
        previous_result_digest=place.previous_result_digest,
        previous_checkpoint=b"",
        cohort_size=cohort_size,
        cohort_quorum=cohort_quorum,
    )
    return site.signer.sign(draw(site.random_bytes, SESSION_ID_BYTES), NO_CONTEXT, body)
