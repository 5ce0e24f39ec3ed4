"""What stays the same during a whole run at the aggregator: the target's site, and the settings of the run."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from securefda.audit.witness import Witness
from securefda.errors import ConfigError
from securefda.protocol.messages import Granularity, Signer, Visibility
from securefda.protocol.roster import Roster
from securefda.protocol.secret import RandomBytes
from securefda.rules import Estimator, Strategy
from securefda.tasks import Samples
from securefda.training import PersonalModel
from securefda.training.trainer import Trainer

ByteCounts = tuple[Mapping[int, int], Mapping[int, int]]
"""Bytes up and down since the start of the process, by roster index."""


@dataclass(frozen=True, slots=True)
class TargetSite:
    """Everything of the target that stays the same during a run; ``notes`` are for its operator, before it begins.

    ``trains_on`` says for people what computes: "cpu (1 thread)".
    ``personal`` is what the target is measured with where that is not the common model.
    """

    signer: Signer
    roster: Roster
    trainer: Trainer
    test_data: Samples
    random_bytes: RandomBytes
    clock: Callable[[], float]
    traffic: Callable[[], ByteCounts]
    witness: Witness
    unix_time: Callable[[], float] = time.time
    notes: tuple[str, ...] = ()
    trains_on: str = ""
    personal: PersonalModel | None = None

    @property
    def sources(self) -> frozenset[int]:
        """Roster indices of all sources."""
        return frozenset(entry.index for entry in self.roster.sources)

    def admits(self, index: int) -> bool:
        """Whether the roster lets this source take part at present; every source would refuse a header with it else."""
        return not self.roster.out_of_date((index,), int(self.unix_time()))

    def name(self, index: int) -> str:
        """Site id of a roster index, or words for an index that the roster does not have."""
        entries = self.roster.entries
        return entries[index].site_id if 0 <= index < len(entries) else f"index {index}"


@dataclass(frozen=True, slots=True)
class RunSettings:
    """How a run goes; ``threshold`` 0 is the default formula, deadlines are seconds.

    ``cohort_size`` is the fewest members of a cohort when it forms; 0 lets each cohort lose one source. ``kappa`` is of
    the norm cap, 0 for none. ``target_noise`` is what protects g_T when it is published, as its releases are
    accounted.
    """

    strategy: Strategy
    visibility: Visibility
    min_others: int
    max_colluders: int
    threshold: int
    modulus_bits: int
    clip: float
    max_samples: int
    attempts: int
    join_deadline_s: float
    training_deadline_s: float
    phase_deadline_s: float
    config_digest: bytes
    cohort_size: int = 0
    kappa: float = 1.0
    norm_cap_granularity: Granularity = Granularity.LAYER
    target_noise: str = "none"

    def __post_init__(self) -> None:
        if self.cohort_size == 0:
            object.__setattr__(self, "cohort_size", self.smallest_sum + 1)
        if self.visibility is Visibility.SUM:
            require_no_step_updates(self.strategy)

    @property
    def smallest_sum(self) -> int:
        """Fewest sources in a sum: a source itself, ``min_others`` others, and ``max_colluders`` that may collude."""
        return self.min_others + self.max_colluders + 1


def require_no_step_updates(strategy: Strategy) -> None:
    """Refuse a strategy under which no source can be at ``sum``: it needs what sources do not see there.

    Raises:
        ConfigError: ``strategy``.
    """
    if not strategy.needs_step_updates:
        return
    cheaper = replace(strategy, estimator=Estimator.MEAN_FIELD)
    other = "another strategy.rule" if cheaper.needs_step_updates else 'strategy.estimator = "mean-field"'
    raise ConfigError(
        "strategy",
        f"{strategy.rule} with estimator {strategy.estimator} needs the target's single steps, "
        "which sources do not see at visibility sum",
        hint=f'set {other}, or privacy.visibility = "cohort" or "individual" where every source permits it',
    )
