"""Strategies: the rule of each round of a run, and its parameters.

Each setting is declared once, as a field of `RulePlan` or `Strategy`: its type says which values it takes, and the text
below it what it means. The configuration's keys and their reference follow from that.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from enum import StrEnum
from functools import partial
from typing import Annotated

from securefda.rules import checks
from securefda.rules.attention import DEFAULT_BOUND, DEFAULT_TEMPERATURE, LARGEST_BOUND, Gain
from securefda.rules.beta import BetaRule, Estimator, needs_steps
from securefda.rules.projection import Projection
from securefda.rules.server import USUAL_RATES, ServerOptimizer, ServerPlan
from securefda.rules.step import Step
from securefda.rules.variance import Variance

Count = Annotated[int, partial(checks.whole_number, least=1)]
Natural = Annotated[int, partial(checks.whole_number, least=0)]
Share = Annotated[float, partial(checks.number_between, least=0, most=1)]
PositiveShare = Annotated[float, partial(checks.number_between, least=0, most=1, open_below=True)]
NotNegative = Annotated[float, partial(checks.number_between, least=0, most=math.inf)]
Momentum = Annotated[float, checks.below_one]
Positive = Annotated[float, partial(checks.number_between, least=0, most=math.inf, open_below=True)]
Bound = Annotated[float, partial(checks.number_between, least=0, most=LARGEST_BOUND, open_below=True)]


class TargetLabels(StrEnum):
    """Which labels the target's training rows have. The values appear in configurations, never in headers."""

    GIVEN = "given"
    """All rows have labels."""

    NONE = "none"
    """No row has a label: the target does not train."""

    PSEUDO = "pseudo"
    """No row has a label; the target trains on the model's own confident predictions, made anew in every round."""


class Head(StrEnum):
    """What the target adds to a rule's model for evaluation. The values appear in configurations, never in headers."""

    NONE = "none"
    """Nothing: the model is evaluated as it is."""

    KNN = "knn"
    """A mixture with the labels of the nearest of the target's own rows, as under `Rule.KNN_PER`."""


class Rule(StrEnum):
    """How a run, or one round of it, combines the updates. The values appear in configurations and headers."""

    SOURCE_ONLY = "source_only"
    """Mean of the sources' updates weighted by samples: FedAvg among the sources."""

    TARGET_ONLY = "target_only"
    """The target's update alone."""

    FEDAVG = "fedavg"
    """Mean of all updates weighted by samples, the target's included."""

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

    PERSONALIZED_FEDAVG = "personalized_fedavg"
    """FedAvg with momentum at the aggregator, then Reptile with Adam; the target is evaluated after some epochs of its
    own (Jiang, Konečný, Rush, Kannan 2019). Both stages are rounds of `FEDAVG`: see `Strategy`."""

    DITTO = "ditto"
    """`FEDAVG`, and a personal model of the target that is regularised towards the global one (Li, Hu, Beirami, Smith
    2021)."""

    APFL = "apfl"
    """`FEDAVG`, and a mixture of its model with a personal model of the target (Deng, Kamani, Mahdavi 2020)."""

    KNN_PER = "knn_per"
    """`FEDAVG`, and the labels of the nearest of the target's own rows (Marfoq, Neglia, Vidal, Kameni 2022)."""

    FEDREP = "fedrep"
    """`FEDAVG` of all layers but the last ones, which stay at their site (Collins, Hassani, Mokhtari, Shakkottai
    2021). Each site's training settings say how many layers stay."""

    FADA_ATTENTION = "fada_attention"
    """Mean of the sources' updates weighted by samples and dynamic attention: an update weighs more, the more it
    tightens the clusters of the target's features (model I of Peng, Huang, Zhu, Saenko 2020). It needs no labels of
    the target's rows; the arithmetic is in `attention`."""

    FADA_ADVERSARIAL = "fada_adversarial"
    """`FADA_ATTENTION`, and adversarial alignment: the target releases features, the sources train theirs to be
    indistinguishable, and the pull on the target's features comes back in the sum (model II of the same paper)."""

    FADA = "fada"
    """`FADA_ADVERSARIAL`, and features are disentangled into domain-invariant ones and the rest (model III)."""

    F_DANN = "f_dann"
    """As `FADA_ADVERSARIAL`, with gradient reversal (Ganin, Lempitsky 2015) at each source and without attention."""

    F_DAN = "f_dan"
    """As `F_DANN`, with the maximum mean discrepancy of several kernels instead of a domain classifier (Long, Cao,
    Wang, Jordan 2015)."""

    ANALYTIC = "analytic"
    """One round, in which the sources add second moments of their rows in place of updates; the target solves for the
    model's last layer by least squares (see `analytic`). All other layers must be frozen."""

    AUTO = "auto"
    """In each round the one of `CANDIDATES` with the smallest estimated Delta error; see `selection`."""

    @property
    def adapts(self) -> bool:
        """Whether a contribution depends on the target's update and statistics: the FedDA and FedGP rules, and auto."""
        return self in _ADAPTING

    @property
    def attends(self) -> bool:
        """Whether a source's weight depends on how its update changes the features of the target's rows."""
        return self in _ATTENDING

    @property
    def releases_features(self) -> bool:
        """Whether sources train with released features of the target's rows, and return a pull on these features."""
        return self in _RELEASING

    @property
    def uses_target_features(self) -> bool:
        """Whether the target uses the features of its rows and no labels."""
        return self.attends or self.releases_features

    @property
    def adds_moments(self) -> bool:
        """Whether the sources add second moments of their rows, and no update."""
        return self is Rule.ANALYTIC

    @property
    def is_mean_of_sources(self) -> bool:
        """Whether the round's update is the mean of the sources' contributions weighted by samples."""
        return self in _MEANS_OF_SOURCES

    @property
    def projects(self) -> bool:
        """Whether the rule is a form of FedGP."""
        return self in (Rule.FEDGP, Rule.FEDGP_AUTO, Rule.FEDGP_FILTERED_AUTO)

    @property
    def beta_rule(self) -> BetaRule | None:
        """Which auto-beta the rule uses; None if it uses none, and for `AUTO`, which leaves it to the round."""
        return _BETA_RULES.get(self)

    @property
    def needs_sources(self) -> bool:
        """Whether a header can ask sources for this rule; see also `RoundPlan.needs_sources`.

        It cannot for target_only, nor for strategies of a whole run, except `AUTO`, which headers name beside the
        round's rule.
        """
        return self is not Rule.TARGET_ONLY and self not in OF_A_WHOLE_RUN - {Rule.AUTO}

    @property
    def is_personal(self) -> bool:
        """Whether the target is evaluated with a personal model, which no other site learns."""
        return self in _PERSONAL

    @property
    def target_labels(self) -> frozenset[TargetLabels]:
        """The kinds of target labels with which the rule can run: its entry in `TARGET_LABELS`."""
        return TARGET_LABELS.get(self, frozenset({TargetLabels.GIVEN}))


_BETA_RULES = {
    Rule.FEDDA_AUTO: BetaRule.FEDDA,
    Rule.FEDGP_AUTO: BetaRule.FEDGP,
    Rule.FEDGP_FILTERED_AUTO: BetaRule.FEDGP_FILTERED,
}
_ADAPTING = frozenset({Rule.FEDDA, Rule.FEDGP, Rule.AUTO, *_BETA_RULES})
_RELEASING = frozenset({Rule.FADA_ADVERSARIAL, Rule.FADA, Rule.F_DANN, Rule.F_DAN})
_ATTENDING = frozenset({Rule.FADA_ATTENTION, Rule.FADA_ADVERSARIAL, Rule.FADA})
_MEANS_OF_SOURCES = frozenset({Rule.SOURCE_ONLY, Rule.F_DANN, Rule.F_DAN, Rule.ANALYTIC})
WARMS_UP = _ADAPTING | _RELEASING | _ATTENDING | {Rule.SOURCE_ONLY, Rule.FEDAVG}
"""Rules that can begin with rounds of the sources alone."""
_PERSONAL = frozenset({Rule.PERSONALIZED_FEDAVG, Rule.DITTO, Rule.APFL, Rule.KNN_PER, Rule.FEDREP})
_MEANS = frozenset({Rule.SOURCE_ONLY, Rule.FEDAVG})
OF_A_WHOLE_RUN = frozenset({Rule.FINETUNE_OFFLINE, Rule.ORACLE, Rule.AUTO, *_PERSONAL})
"""Strategies whose rounds follow other rules, which `round_plan` names."""

TARGET_LABELS: Mapping[Rule, frozenset[TargetLabels]] = {
    **dict.fromkeys((Rule.SOURCE_ONLY, Rule.ANALYTIC), frozenset({TargetLabels.GIVEN, TargetLabels.NONE})),
    **dict.fromkeys(_ATTENDING | _RELEASING, frozenset({TargetLabels.NONE})),
    **dict.fromkeys(_ADAPTING - {Rule.AUTO}, frozenset({TargetLabels.GIVEN, TargetLabels.PSEUDO})),
}
"""Rules that can run without given labels of the target's training rows; every other rule needs given labels.

The rules of FADA and their baselines refuse given labels because they would ignore them, and their results are not
comparable with those of rules that use labels.

`Rule.AUTO` is not listed: it compares estimated errors, and the error of the target's own update is estimated by the
variance of its steps, which does not see wrong pseudo-labels.
"""

CANDIDATES = (Rule.TARGET_ONLY, Rule.FEDGP_AUTO, Rule.FEDDA_AUTO, Rule.SOURCE_ONLY)
"""The rules that `Rule.AUTO` chooses from. In a tie the earlier wins: target_only comes first, as no update leaves a
source under it; source_only comes last, as it does not align and so its estimate fits worst."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RulePlan:
    """A rule and the parameters of its evaluation.

    Every attribute with an enumeration also accepts the member's name.

    Raises:
        ValueError: an attribute is out of its range; the message starts with its name.
    """

    rule: Rule
    """The rule that turns updates into the next model."""

    beta: Share = 0.5
    """Weight of a source under `fedda` and `fedgp`, from 0 to 1; other rules ignore it."""

    beta_per_layer: bool = False
    """Whether auto-β is one number for each layer instead of one for the whole model. A source then counts for more in
    the layers in which it is close to the target. Not possible if the rule needs the target's single steps."""

    projection: Projection = Projection.ORTHOGONAL
    """Form of the projection under the FedGP rules."""

    filter: bool = True
    """Whether FedGP leaves out a source in each layer in which its update points against the target's."""

    align: bool = True
    """Whether the FedDA and FedGP rules align a source's update with the target's number of steps and learning rate
    before they average it. Auto-β compares aligned steps in any case."""

    estimator: Estimator = Estimator.MEAN_FIELD
    """How auto-β estimates the variance of the target's update; `exact` needs the target's single steps."""

    variance: Variance = Variance.STEPS
    """How the target estimates σ², the variance of its update: from the `steps` of its training, as the paper does; at
    a `fixed-point`, from the gradients of an epoch's batches at the received model, which costs one more epoch; or
    `cross-fitted`, from two more runs, each on half of its rows, which costs as much as training again. No source
    learns which. Not with noise at the target, since its ledger does not count this, and not without given labels."""

    step: Step = Step.FULL
    """How much of a round's update the target takes under the FedDA and FedGP rules: `full`, all of it; or `validated`,
    the mixture of it and the target's own update that is best on the rows that `validation-share` sets aside."""

    attention_gain: Gain = Gain.FIRST_ORDER
    """How rules with attention (`fada_attention`, `fada_adversarial`, `fada`) measure the effect of an update on the
    target's features; `exact` needs the updates."""

    attention_temperature: Positive = DEFAULT_TEMPERATURE
    """With attention, the gain at which an update weighs e times as much as one without gain; above 0."""

    attention_bound: Bound = DEFAULT_BOUND
    """With attention, no update weighs more than e to the power of twice this number times another; above 0 and at most
    5."""

    def __post_init__(self) -> None:
        checks.every_field(self)
        if self.variance is not Variance.STEPS and self.needs_step_updates:
            why = f"must be {Variance.STEPS}, {self.rule} with the {self.estimator} estimator takes the single steps"
            raise ValueError(f"variance: {why}")
        if self.beta_per_layer and self.needs_step_updates:
            why = f"must be false, {self.rule} with the {self.estimator} estimator takes the single steps as a whole"
            raise ValueError(f"beta_per_layer: {why}")

    @property
    def needs_step_updates(self) -> bool:
        """Whether evaluation needs the target's single steps, beyond its update and three statistics.

        Errors are estimated for all candidates, and so for FedGP's beta as well.
        """
        beta_rule = BetaRule.FEDGP if self._estimates_errors else self.rule.beta_rule
        return beta_rule is not None and needs_steps(beta_rule, self.estimator)

    @property
    def validates_step(self) -> bool:
        """Whether the target needs validation rows to decide how much of the round's update to take."""
        return self.step is Step.VALIDATED and self.rule.adapts

    @property
    def needs_single_updates(self) -> bool:
        """Whether the target itself must see single updates, or means of cohorts, to compute their exact gain."""
        return self.rule.attends and self.attention_gain is Gain.EXACT

    @property
    def _estimates_errors(self) -> bool:
        return self.rule is Rule.AUTO


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundPlan(RulePlan):
    """The rule of one round and its parameters.

    Attributes:
        rule: as in `RulePlan`, but never one of `OF_A_WHOLE_RUN`; `round_plan` resolves those.
        learning_rate_factor: multiplies the learning rates of the target and of every source in this round.
        select: whether the sources estimate the errors of `CANDIDATES`, so that the next round's rule can be chosen;
            the round's own rule must then be one of them.
        server: the server optimiser's step in a round that is a mean; None: add the mean itself. Not in headers.

    Raises:
        ValueError: an attribute is out of its range; the message starts with its name.
    """

    learning_rate_factor: Positive = 1.0
    select: bool = False
    server: ServerPlan | None = None

    def __post_init__(self) -> None:
        RulePlan.__post_init__(self)
        if self.rule in OF_A_WHOLE_RUN:
            raise ValueError(f"rule: {self.rule} is a strategy of a whole run, not the rule of one round")
        if self.select and self.rule not in CANDIDATES:
            raise ValueError(f"select: {self.rule} is not one of the rules that are chosen from")
        if self.server is not None and self.rule not in _MEANS:
            raise ValueError(f"server: {self.rule} is no mean of updates, which such a step needs")

    @property
    def needs_sources(self) -> bool:
        """Whether any source takes part; in a target_only round, sources only estimate errors."""
        return self.rule.needs_sources or self.select

    @property
    def trains_target(self) -> bool:
        """Whether the target trains in the round: not where the model is the mean of the sources, as in warm-up."""
        return not self.rule.attends and (self.select or not self.rule.is_mean_of_sources)

    @property
    def uses_target_statistics(self) -> bool:
        """Whether a source needs the target's update and statistics, for its contribution or to estimate errors."""
        return self.rule.adapts or self.select

    @property
    def aligns_estimates_only(self) -> bool:
        """Whether auto-beta or estimated errors need the factor of an alignment that the average goes without."""
        return not self.align and (self.rule.beta_rule is not None or self.select)

    @property
    def _estimates_errors(self) -> bool:
        return self.select


@dataclass(frozen=True, slots=True, kw_only=True)
class Strategy(RulePlan):
    """The rule of a whole run and its schedule.

    Warm-up (Appendix C.2 of the paper): the first rounds are `Rule.SOURCE_ONLY`, since projection from a random model
    is slow; then both learning rates drop, whatever `Rule.AUTO` then chooses. Warm-up applies to every rule with
    sources, except `Rule.FINETUNE_OFFLINE` and the personal strategies, which have their own schedules; target_only
    and oracle use no sources.

    Reptile (Nichol, Achiam, Schulman 2018), at the end of `Rule.PERSONALIZED_FEDAVG`, takes K steps and the uniform
    mean. Here the steps are those of the sites' own settings and the mean is weighted by samples as in `Rule.FEDAVG`,
    because no header can ask for anything else; so these rounds differ only by Adam at the aggregator, whose other
    parameters are the ``server_`` ones.

    Raises:
        ValueError: an attribute is out of its range; the message starts with its name.
    """

    rounds: Count
    """Rounds of the run, at least 1."""

    warm_up_rounds: Natural = 0
    """Rounds of `source_only` before the rule begins; fewer than `rounds`."""

    lr_after_warm_up: PositiveShare = 1.0
    """Factor of every site's learning rate after warm-up, above 0 and at most 1."""

    finetune_rounds: Natural = 0
    """Rounds at the end of `finetune_offline` in which the target trains alone; fewer than `rounds`."""

    server_optimizer: ServerOptimizer = ServerOptimizer.NONE
    """Optimizer with which the aggregator moves the model, under rules that take the mean of the updates."""

    server_learning_rate: NotNegative = 0.0
    """Learning rate of that optimizer; 0 takes the usual one, 1 for momentum and 0.01 for Adam."""

    server_momentum: Momentum = 0.9
    """Share of the past that the optimizer keeps, at least 0 and below 1; Adam's first β."""

    server_second_momentum: Momentum = 0.99
    """Adam's second β, at least 0 and below 1."""

    server_epsilon: Positive = 1e-3
    """The number that Adam adds to its divisor, above 0."""

    reptile_rounds: Natural = 0
    """Rounds of Reptile at the end of `personalized_fedavg`; fewer than `rounds`."""

    reptile_learning_rate: Positive = 0.01
    """Learning rate of Adam in the rounds of Reptile, above 0."""

    personal_epochs: Count = 1
    """Epochs in which the target trains its own model, under `ditto` and `personalized_fedavg`; at least 1."""

    ditto_lambda: NotNegative = 0.1
    """How strongly `ditto` pulls the target's own model towards the common one, at least 0."""

    apfl_alpha: Share = 0.5
    """Share of the target's own model in the mixture of `apfl`, from 0 to 1."""

    apfl_adaptive: bool = False
    """Whether `apfl` adapts that share in each round by its gradient."""

    head: Head = Head.NONE
    """How the target improves the model's predictions for its own rows: `knn` combines them with the labels of its
    nearest rows, as `knn_per` does. It stays at the target: no other site notices. Results and predictions of the run
    use it. Not under rules that measure a personal model of the target, nor with noise at the target, nor without given
    labels."""

    knn_neighbours: Count = 10
    """How many of the target's nearest rows are used, under `knn_per` or with `head = "knn"`; at least 1."""

    knn_weight: Share = 0.5
    """Weight of the nearest rows' labels, from 0 to 1; the rest is the model's."""

    knn_scale: Positive = 1.0
    """Distance over which the weight of a neighbour falls by the factor e, above 0."""

    def __post_init__(self) -> None:
        RulePlan.__post_init__(self)
        if self.rule is Rule.ANALYTIC and self.rounds != 1:
            raise ValueError(f"rule: {self.rule} has one round, and rounds is {self.rounds}; set it to 1")
        if self.warm_up_rounds >= self.rounds and self.rule is not Rule.ANALYTIC:
            raise ValueError(
                f"warm_up_rounds: must be below the {self.rounds} rounds of the run, is {self.warm_up_rounds}"
            )
        last = {Rule.FINETUNE_OFFLINE: "finetune_rounds", Rule.PERSONALIZED_FEDAVG: "reptile_rounds"}.get(self.rule)
        if last and not 1 <= (count := getattr(self, last)) < self.rounds:
            why = f"{self.rule} needs at least 1 and fewer than the {self.rounds} rounds of the run, is {count}"
            raise ValueError(f"{last}: {why}")
        if self.server_optimizer is not ServerOptimizer.NONE:
            if self.rule is Rule.PERSONALIZED_FEDAVG:
                raise ValueError(f"server_optimizer: must be none, {self.rule} has optimisers of its own")
            if self.rule not in _MEANS | _PERSONAL:
                raise ValueError(f"server_optimizer: must be none, the rounds of {self.rule} are no means of updates")
        if self.head is not Head.NONE and self.rule.is_personal:
            raise ValueError(f"head: must be none, {self.rule} measures a model of the target's own")

    @property
    def warm_up(self) -> int:
        """Number of warm-up rounds that the run has; 0 under a rule without warm-up."""
        return self.warm_up_rounds if self.rule in WARMS_UP else 0

    @property
    def source_rounds(self) -> int:
        """Number of the last round in which sources can take part; the target trains alone after it."""
        return self.rounds - (self.finetune_rounds if self.rule is Rule.FINETUNE_OFFLINE else 0)

    @property
    def asks_neighbours(self) -> bool:
        """Whether the target is evaluated with the labels of its nearest rows beside the model."""
        return self.head is Head.KNN or self.rule is Rule.KNN_PER

    @property
    def is_personal(self) -> bool:
        """Whether the target is evaluated with a personal model or head, which no other site learns."""
        return self.rule.is_personal or self.head is not Head.NONE

    def server(self, *, reptile: bool = False) -> ServerPlan | None:
        """The server optimiser in a round that is a mean; None if there is none."""
        optimizer, rate = self.server_optimizer, self.server_learning_rate
        if self.rule is Rule.PERSONALIZED_FEDAVG:
            optimizer = ServerOptimizer.ADAM if reptile else ServerOptimizer.MOMENTUM
            rate = self.reptile_learning_rate if reptile else rate
        if optimizer is ServerOptimizer.NONE:
            return None
        return ServerPlan(
            optimizer=optimizer,
            learning_rate=rate or USUAL_RATES[optimizer],
            momentum=self.server_momentum,
            second_momentum=self.server_second_momentum,
            epsilon=self.server_epsilon,
        )


def round_plan(strategy: Strategy, round_number: int, errors: Mapping[Rule, float] | None = None) -> RoundPlan:
    """Return the plan of one round, counted from 1, under ``strategy``.

    Under `Rule.AUTO` the sources estimate errors in every round after warm-up, for the choice in the next round.

    Args:
        strategy: of the run.
        round_number: from 1 to ``strategy.rounds``.
        errors: the estimated errors of `CANDIDATES` in the last finished round that estimated them. None if there is
            no such round: `Rule.AUTO` then takes fedgp_auto. Warm-up rounds and other strategies ignore it.

    Raises:
        ValueError: ``round_number`` is not a round of the run, or ``errors`` are invalid, see `choose_rule`.
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
        server=strategy.server(reptile=number > strategy.rounds - strategy.reptile_rounds) if rule in _MEANS else None,
        **{one.name: getattr(strategy, one.name) for one in fields(RulePlan) if one.name != "rule"},
    )


def possible_plans(strategy: Strategy) -> list[RoundPlan]:
    """Return the plan of every kind of round of a run in which sources take part, each once."""
    estimates = (None, *({rule: 0.0} for rule in CANDIDATES))
    plans = [round_plan(strategy, number, errors) for number in (1, strategy.rounds) for errors in estimates]
    return list(dict.fromkeys(plan for plan in plans if plan.needs_sources))


def choose_rule(errors: Mapping[Rule, float]) -> Rule:
    """Return the rule with the smallest estimated Delta error; in a tie the earliest in `CANDIDATES`.

    Args:
        errors: of some or all of `CANDIDATES`, finite, at least one.

    Raises:
        ValueError: ``errors`` is empty, or has a number that is not finite or a rule that is no candidate; the message
            starts with ``errors``.
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
    if strategy.rule.is_personal:
        return Rule.FEDAVG, 1.0
    if strategy.warm_up == 0:
        return strategy.rule, 1.0
    if number <= strategy.warm_up:
        return Rule.SOURCE_ONLY, 1.0
    return strategy.rule, strategy.lr_after_warm_up
