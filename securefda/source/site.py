"""What a source is during a run: its keys, its roster, its policy, its data and its memory."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from securefda.audit.witness import Witness
from securefda.errors import ConfigError
from securefda.operations.records import SiteLine
from securefda.protocol.checks import SessionLimits
from securefda.protocol.messages import Header, Signer, Update, Visibility
from securefda.protocol.roster import Roster
from securefda.protocol.secret import RandomBytes
from securefda.site.policy import SourcePolicy, check_header, check_metadata
from securefda.source.store import SourceStore
from securefda.training import LocalResult
from securefda.training.trainer import Trainer


@dataclass(frozen=True, slots=True)
class Permits:
    """What of this site's policy goes into its own messages.

    Attributes:
        visibility: the most that the aggregator may see; the first message says so.
        may_leave: which of ``loss`` and ``accuracy`` go in clear beside an update at ``individual``.
        metrics: whether loss and accuracy leave at all, be it inside a sum; the first message says so. False where the
            site trains with DP-SGD: noise protects gradients and not these.
    """

    visibility: Visibility
    may_leave: frozenset[str] = frozenset()
    metrics: bool = True


@dataclass(frozen=True, slots=True)
class ModelBounds:
    """Which models this site trains, see :mod:`securefda.source.model_bound`.

    Attributes:
        step: ``limits.model-step`` of the policy.
        initial: SHA-256 digests of permitted first models; empty for the task's own.
    """

    step: float
    initial: tuple[bytes, ...] = ()


@dataclass(frozen=True, slots=True)
class SourceSite:
    """Everything of a source that stays the same during a run; ``notes`` are for its operator, before it begins.

    ``trains_on`` says for people what computes: "cpu (1 thread)".
    """

    signer: Signer
    roster: Roster
    limits: SessionLimits
    check_policy: Callable[[Header], None]
    check_update: Callable[[Update], None]
    permits: Permits
    models: ModelBounds
    trainer: Trainer
    store: SourceStore
    witness: Witness
    random_bytes: RandomBytes
    software_version: str
    unix_time: Callable[[], float] = time.time
    notes: tuple[str, ...] = ()
    trains_on: str = ""

    @classmethod
    def under_policy(
        cls,
        policy: SourcePolicy,
        *,
        signer: Signer,
        roster: Roster,
        trainer: Trainer,
        store: SourceStore,
        witness: Witness,
        random_bytes: RandomBytes,
        software_version: str,
        metrics: bool = True,
        unix_time: Callable[[], float] = time.time,
        trains_on: str = "",
        notes: tuple[str, ...] = (),
    ) -> SourceSite:
        """A source that does what ``policy`` permits, and no more; ``metrics`` as :class:`Permits` has it."""
        limits = policy.session_limits(roster)
        return cls(
            signer=signer,
            roster=roster,
            limits=limits,
            check_policy=lambda header: check_header(policy, header, signer.index, limits, with_noise=not metrics),
            check_update=lambda update: check_metadata(policy, update),
            permits=Permits(policy.visibility, frozenset(policy.metadata.may_leave), metrics),
            models=ModelBounds(policy.limits.model_step, policy.model.digests),
            trainer=trainer,
            store=store,
            witness=witness,
            random_bytes=random_bytes,
            software_version=software_version,
            unix_time=unix_time,
            trains_on=trains_on,
            notes=notes,
        )


def site_line(header: Header, level: Visibility, result: LocalResult) -> SiteLine:
    """This site's own line of a round, as far as training fills it."""
    line = SiteLine(
        round=header.round,
        attempt=header.attempt,
        level=level.label,
        rule=header.rule.rule,
        beta=None,
        samples=result.samples,
        loss=result.loss,
        clipped=0,
        capped=0,
        zeroed=0,
    )
    if result.epsilon is not None:
        line["epsilon"] = result.epsilon
    return line


def require_room_for(rows: int, policy: SourcePolicy) -> None:
    """Before any header is seen: what the policy lets a header ask for must hold this site's rows.

    Raises:
        ConfigError: it does not, so that refusing a header would tell how many rows there are.
    """
    least = policy.quantisation.max_samples_min
    if rows > least:
        raise ConfigError(
            "quantisation.max-samples-min",
            f"{least} in this site's policy.toml is below its {rows} training rows",
            hint="raise it there, and session.max-samples at the aggregator",
        )
