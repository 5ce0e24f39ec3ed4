"""Strategies: which rule a run follows in which round, and with what parameters."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from securefda.adaptation import checks
from securefda.adaptation.beta import BetaRule, Estimator, needs_steps
from securefda.adaptation.projection import Projection


class Rule(StrEnum):
    """What a run, or one round of it, does with the updates. The values stand in configurations and headers."""

    SOURCE_ONLY = "source_only"
    """Mean of the sources' updates by samples: FedAvg among the sources."""

    TARGET_ONLY = "target_only"
    """The target's update alone."""

    FEDAVG = "fedavg"
    """Mean by samples, the target being one more site."""

    FEDDA = "fedda"
    """Definition 4.1 of the paper with one given beta."""

    FEDGP = "fedgp"
    """Definition 4.3 of the paper with one given beta."""

    FEDDA_AUTO = "fedda_auto"
    FEDGP_AUTO = "fedgp_auto"
    FEDGP_FILTERED_AUTO = "fedgp_filtered_auto"

    FINETUNE_OFFLINE = "finetune_offline"
    """Rounds of `SOURCE_ONLY`, then rounds of `TARGET_ONLY`."""

    ORACLE = "oracle"
    """`TARGET_ONLY` on all of the target's labelled data: an upper bound, for which no source is needed."""

    AUTO = "auto"
    """In each round the one of `CANDIDATES` with the smallest estimated Delta error (Definition 3.7 of the paper)."""

    @property
    def adapts(self) -> bool:
        """Whether a contribution depends on the target's update and statistics: the FedDA and FedGP rules, and auto."""
        return self in _ADAPTING

    @property
    def projects(self) -> bool:
        """Whether the rule is a form of FedGP."""
        return self in (Rule.FEDGP, Rule.FEDGP_AUTO, Rule.FEDGP_FILTERED_AUTO)

    @property
    def beta_rule(self) -> BetaRule | None:
        """Which auto-beta the rule uses; None where it uses none, and for `AUTO`, which leaves it to the round."""
        return _BETA_RULES.get(self)

    @property
    def needs_sources(self) -> bool:
        """Whether any source takes part in a round of this rule; see `RoundPlan.needs_sources`."""
        return self not in (Rule.TARGET_ONLY, Rule.ORACLE)


_BETA_RULES = {
    Rule.FEDDA_AUTO: BetaRule.FEDDA,
    Rule.FEDGP_AUTO: BetaRule.FEDGP,
    Rule.FEDGP_FILTERED_AUTO: BetaRule.FEDGP_FILTERED,
}
_ADAPTING = frozenset({Rule.FEDDA, Rule.FEDGP, Rule.AUTO, *_BETA_RULES})
_WARMS_UP = _ADAPTING | {Rule.SOURCE_ONLY, Rule.FEDAVG}
OF_A_WHOLE_RUN = frozenset({Rule.FINETUNE_OFFLINE, Rule.ORACLE, Rule.AUTO})
"""Strategies whose rounds follow other rules, which `round_plan` names."""

CANDIDATES = (Rule.TARGET_ONLY, Rule.FEDGP_AUTO, Rule.FEDDA_AUTO, Rule.SOURCE_ONLY)
"""What `Rule.AUTO` chooses from. Of equal estimates the earlier wins: first the rule under which nothing of an update
leaves a source, last the one that its estimate fits worst, since source_only does not align."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RulePlan:
    """A rule and all that its evaluation depends on beside the updates.

    Attributes:
        rule: what to do with the updates; the rule's name is accepted too, as for the other names here.
        beta: weight of a source under `Rule.FEDDA` and `Rule.FEDGP`, in [0, 1]; other rules ignore it.
        projection: form of the projection under the FedGP rules.
        filter: whether layers in which source and target disagree in sign are left out (FedGP rules).
        align: whether a source's update is aligned with the target's schedule (FedDA and FedGP rules).
        estimator: how auto-beta estimates tau^2 d^2.

    Raises:
        ValueError: an attribute is out of its range; the message starts with its name.
    """

    rule: Rule
    beta: float = 0.5
    projection: Projection = Projection.ORTHOGONAL
    filter: bool = True
    align: bool = True
    estimator: Estimator = Estimator.MEAN_FIELD

    def __post_init__(self) -> None:
        object.__setattr__(self, "rule", checks.choice("rule", self.rule, Rule))
        object.__setattr__(self, "projection", checks.choice("projection", self.projection, Projection))
        object.__setattr__(self, "estimator", checks.choice("estimator", self.estimator, Estimator))
        checks.number_between("beta", self.beta, 0, 1)
        checks.switch("filter", self.filter)
        checks.switch("align", self.align)

    @property
    def needs_step_updates(self) -> bool:
        """Whether evaluation needs the target's single steps, beyond its update and three statistics.

        Estimated errors are those of all candidates, and so need what FedGP's beta needs.
        """
        beta_rule = BetaRule.FEDGP if self._estimates_errors else self.rule.beta_rule
        return beta_rule is not None and needs_steps(beta_rule, self.estimator)

    @property
    def _estimates_errors(self) -> bool:
        return self.rule is Rule.AUTO


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundPlan(RulePlan):
    """What one round does.

    Attributes:
        rule: as in `RulePlan`; in a round never `Rule.FINETUNE_OFFLINE`, `Rule.ORACLE` nor `Rule.AUTO`, which
            `round_plan` resolves.
        learning_rate_factor: multiplies the learning rates of the target and of every source in this round.
        select: whether the sources estimate the errors of `CANDIDATES`, so that the next round's rule can be chosen;
            the round's own rule is then one of them.

    Raises:
        ValueError: an attribute is out of its range; the message starts with its name.
    """

    learning_rate_factor: float = 1.0
    select: bool = False

    def __post_init__(self) -> None:
        RulePlan.__post_init__(self)
        if self.rule in OF_A_WHOLE_RUN:
            raise ValueError(f"rule: {self.rule} is a strategy of a whole run, not the rule of one round")
        checks.number_between("learning_rate_factor", self.learning_rate_factor, 0, math.inf, open_below=True)
        if checks.switch("select", self.select) and self.rule not in CANDIDATES:
            raise ValueError(f"select: {self.rule} is not one of the rules that are chosen from")

    @property
    def needs_sources(self) -> bool:
        """Whether any source takes part: in a target_only round only to estimate errors."""
        return self.rule.needs_sources or self.select

    @property
    def uses_target_statistics(self) -> bool:
        """Whether a source needs the target's update and statistics, for its contribution or to estimate errors."""
        return self.rule.adapts or self.select

    @property
    def _estimates_errors(self) -> bool:
        return self.select


@dataclass(frozen=True, slots=True, kw_only=True)
class Strategy(RulePlan):
    """The rule of a whole run and its schedule.

    Warm-up (Appendix C.2 of the paper): the first rounds are `Rule.SOURCE_ONLY`, since projection from a random model
    is slow; then both learning rates drop, whatever `Rule.AUTO` then chooses. It concerns every rule that the
    sources take part in, but for `Rule.FINETUNE_OFFLINE`, which has its own schedule; target_only and oracle never see
    a source.

    Attributes:
        rounds: number of rounds, at least 1.
        warm_up_rounds: number of warm-up rounds, below ``rounds``.
        lr_after_warm_up: factor of the learning rates after warm-up, in (0, 1]; 1 where there is no warm-up.
        finetune_rounds: number of target_only rounds at the end of `Rule.FINETUNE_OFFLINE`; there at least 1, and below
            ``rounds``. Other rules ignore it.

    Raises:
        ValueError: an attribute is out of its range; the message starts with its name.
    """

    rounds: int
    warm_up_rounds: int = 0
    lr_after_warm_up: float = 1.0
    finetune_rounds: int = 0

    def __post_init__(self) -> None:
        RulePlan.__post_init__(self)
        rounds = checks.whole_number("rounds", self.rounds, least=1)
        if checks.whole_number("warm_up_rounds", self.warm_up_rounds, least=0) >= rounds:
            raise ValueError(f"warm_up_rounds: must be below the {rounds} rounds of the run, is {self.warm_up_rounds}")
        checks.number_between("lr_after_warm_up", self.lr_after_warm_up, 0, 1, open_below=True)
        checks.whole_number("finetune_rounds", self.finetune_rounds, least=0)
        if self.rule is Rule.FINETUNE_OFFLINE and not 1 <= self.finetune_rounds < rounds:
            raise ValueError(
                f"finetune_rounds: {self.rule} needs at least 1 and fewer than the {rounds} rounds of the run, "
                f"is {self.finetune_rounds}"
            )


def round_plan(strategy: Strategy, round_number: int, errors: Mapping[Rule, float] | None = None) -> RoundPlan:
    """Return what the given round, counted from 1, does under ``strategy``.

    Under `Rule.AUTO` the sources estimate errors in every round after warm-up; the first of these has none to go by.

    Args:
        strategy: of the run.
        round_number: from 1 to ``strategy.rounds``.
        errors: the estimated errors of `CANDIDATES` in the last finished round that estimated them; None before there
            is one: then `Rule.AUTO` takes fedgp_auto. Warm-up rounds and other strategies ignore it.

    Raises:
        ValueError: ``round_number`` is not a round of the run, or ``errors`` are unfit, see `choose_rule`.
    """
    number = checks.whole_number("round_number", round_number, least=1)
    if number > strategy.rounds:
        raise ValueError(f"round_number: the run has {strategy.rounds} rounds, asked for {number}")
    rule, factor = _rule_and_factor(strategy, number)
    if rule is Rule.AUTO:
        rule = Rule.FEDGP_AUTO if errors is None else choose_rule(errors)
    return RoundPlan(
        rule=rule,
        learning_rate_factor=factor,
        select=strategy.rule is Rule.AUTO and number > strategy.warm_up_rounds,
        beta=strategy.beta,
        projection=strategy.projection,
        filter=strategy.filter,
        align=strategy.align,
        estimator=strategy.estimator,
    )


def choose_rule(errors: Mapping[Rule, float]) -> Rule:
    """Return the rule with the smallest estimated Delta error; of equal ones the earliest in `CANDIDATES`.

    Args:
        errors: of some or all of `CANDIDATES`, finite, at least one.

    Raises:
        ValueError: there is none, one is not finite, or one is of another rule; the message starts with ``errors``.
    """
    if not errors or not set(errors) <= set(CANDIDATES):
        raise ValueError(f"errors: must be of some of {', '.join(CANDIDATES)}; are of {', '.join(errors) or 'none'}")
    for error in errors.values():
        checks.number_between("errors", error, -math.inf, math.inf)
    return min((rule for rule in CANDIDATES if rule in errors), key=lambda rule: errors[rule])


def _rule_and_factor(strategy: Strategy, number: int) -> tuple[Rule, float]:
    if strategy.rule is Rule.ORACLE:
        return Rule.TARGET_ONLY, 1.0
    if strategy.rule is Rule.FINETUNE_OFFLINE:
        finetunes = number > strategy.rounds - strategy.finetune_rounds
        return (Rule.TARGET_ONLY if finetunes else Rule.SOURCE_ONLY), 1.0
    if strategy.rule not in _WARMS_UP or strategy.warm_up_rounds == 0:
        return strategy.rule, 1.0
    if number <= strategy.warm_up_rounds:
        return Rule.SOURCE_ONLY, 1.0
    return strategy.rule, strategy.lr_after_warm_up
