"""The plan of an attempt (its sources and their visibility levels), and the header that opens it."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from hashlib import sha256

from securefda.aggregator.ranges import WordFormat, narrowest
from securefda.aggregator.site import RunSettings, TargetSite, settings_of
from securefda.aggregator.target import TargetOutput, feature_terms, gap_gradient_digest, published_terms
from securefda.errors import ConfigError, QuorumLost
from securefda.protocol.encoding import vector_to_wire
from securefda.protocol.graph import smallest_graph
from securefda.protocol.header_checks import default_threshold, threshold_is_sound
from securefda.protocol.messages import (
    DIGEST_BYTES,
    GRAM_LAYER,
    NO_CONTEXT,
    PULL_LAYER,
    RUN_ID_BYTES,
    SESSION_ID_BYTES,
    FeatureTerms,
    GraphTerms,
    Header,
    Layer,
    NormCapTerms,
    RuleTerms,
    Schedule,
    Signed,
    TargetTerms,
    Visibility,
)
from securefda.protocol.secret import draw
from securefda.protocol.transcript import architecture_digest
from securefda.protocol.weighed_contribution import terms_of
from securefda.rules import RoundPlan, Rule, Strategy, moments_length, possible_plans, round_plan
from securefda.site.config import FederationConfig, require_rule_at_sum
from securefda.site.policy.verdict import plan_levels
from securefda.tasks import TaskSettings, load_task
from securefda.text import counted
from securefda.training import LayerTable, Vector, build_model, derive_seed, layer_table
from securefda.training.model_features import feature_width, require_frozen_features


@dataclass(frozen=True, slots=True)
class SessionPlan:
    """The participants of an attempt, their levels, and the numbers that follow from them.

    Attributes:
        levels: visibility level of each participant, by roster index.
        threshold: t of the masking session; 1 if there is none.
        sum_quorum: fewest sources over which the sum opens; 0 if no source is at ``sum``.
        cohort_size: fewest members of a cohort; 0 if no source is at ``cohort``.
        cohort_quorum: fewest sources over which the sum of a cohort opens; 0 if no source is at ``cohort``.
        norm_cap: the norm cap of the sum, or None.
        graph: of a session among neighbours, or None.
    """

    levels: Mapping[int, Visibility]
    threshold: int
    sum_quorum: int
    cohort_size: int
    cohort_quorum: int
    norm_cap: NormCapTerms | None
    graph: GraphTerms | None

    @property
    def participants(self) -> tuple[int, ...]:
        """Roster indices in order."""
        return tuple(sorted(self.levels))


@dataclass(frozen=True, slots=True)
class Planner:
    """Plans attempts under a run's settings; ``names`` has the site ids of all sources by roster index."""

    names: Mapping[int, str]
    settings: RunSettings

    def plan(self, permitted: Mapping[int, Visibility], *, with_sum: bool = False) -> SessionPlan:
        """Plan an attempt with these sources, none of them seen more than its policy permits.

        Args:
            permitted: the most that each source's policy lets the aggregator see, by roster index.
            with_sum: whether sources must be at ``sum``; if none would be, all are.

        Raises:
            ConfigError: there is no such plan; the error names the sites that cannot be served, or the strategy that
                is impossible at ``sum``.
        """
        if not permitted:
            raise ConfigError("privacy.visibility", "no source takes part")
        settings = self.settings
        asked, smallest = settings.visibility, settings.smallest_sum
        by_name = {self.names[index]: max(asked, level) for index, level in permitted.items()}
        levels = plan_levels(by_name, smallest)
        if with_sum and Visibility.SUM not in levels.values():
            levels = plan_levels(dict.fromkeys(by_name, Visibility.SUM), smallest)
        by_index = {index: levels[self.names[index]] for index in permitted}
        of_sum, in_cohorts = (
            sum(level is wanted for level in levels.values()) for wanted in (Visibility.SUM, Visibility.COHORT)
        )
        if of_sum:
            require_rule_at_sum(settings.strategy)
        threshold = sum_quorum = self._threshold(of_sum + in_cohorts)
        graph = None
        if settings.dropouts is not None and of_sum + in_cohorts:
            threshold, graph = self._graph(of_sum, in_cohorts, threshold)
            sum_quorum = threshold
        if in_cohorts:  # like the threshold, but for the members of the sum; at most the threshold
            sum_quorum = min(of_sum, threshold, max(2 * of_sum // 3 + 1, smallest))
        norm_cap = None
        if of_sum and settings.kappa:
            norm_cap = NormCapTerms(
                settings.kappa, sum_quorum - 1 - settings.max_colluders, settings.norm_cap_granularity
            )
        return SessionPlan(
            levels=by_index,
            threshold=threshold,
            sum_quorum=sum_quorum if of_sum else 0,
            cohort_size=min(settings.cohort_size, threshold, in_cohorts),
            cohort_quorum=smallest if in_cohorts else 0,
            norm_cap=norm_cap,
            graph=graph,
        )

    def _graph(self, of_sum: int, in_cohorts: int, threshold: int) -> tuple[int, GraphTerms]:
        """The threshold of a session among neighbours, and its graph.

        Raises:
            ConfigError: a source is not at ``sum``, or there are so few that only the complete graph is safe.
        """
        settings = self.settings
        if in_cohorts:
            raise ConfigError("session.graph", "sources with neighbours make up one sum, and some are at cohort")
        dropouts = math.ceil((settings.dropouts or 0.0) * of_sum)
        fewest = settings.threshold or max(threshold, of_sum - dropouts)
        graph = smallest_graph(
            of_sum,
            fewest=fewest,
            colluders=settings.max_colluders,
            dropouts=dropouts,
            least=settings.smallest_sum,
        )
        if graph is None:
            why = (
                f"with {counted(of_sum, 'source')} and {settings.max_colluders} that may collude each needs all others"
            )
            raise ConfigError("session.graph", why, hint='set "complete", or lower privacy.max-colluders')
        return fewest, graph

    def _threshold(self, n: int) -> int:
        """t of a session of n sources; 1 if n is 0, since one source is enough for updates in clear."""
        settings = self.settings
        if n == 0:
            return 1
        try:
            threshold = settings.threshold or default_threshold(n, settings.min_others, settings.max_colluders)
        except ValueError as error:
            raise ConfigError("privacy.max-colluders", str(error)) from None
        if not threshold_is_sound(threshold, n, settings.max_colluders):
            why = f"{threshold} does not protect {n} sources of which {settings.max_colluders} may collude"
            raise ConfigError("session.threshold", why, hint="leave it at 0 for the default")
        return threshold

    def too_few(self, present: Collection[int], why: ConfigError) -> QuorumLost:
        """The error that ends a run because too few sources joined; it names the missing ones."""
        settings = self.settings
        needed = 1 if settings.visibility is Visibility.INDIVIDUAL else max(settings.smallest_sum, settings.threshold)
        have = [self.names[index] for index in sorted(present)]
        missing = [self.names[index] for index in sorted(set(self.names) - set(present))]
        which = f"the missing sources ({why.why})" if len(have) >= needed else "the missing sources"
        hint = f"start {which}, and restart every site that has ended: the run goes on after its last finished round"
        return QuorumLost("join", needed, have, missing, hint=hint)


@dataclass(frozen=True, slots=True)
class AttemptPosition:
    """The position of an attempt in its run, and the result and checkpoint that it continues."""

    run_id: bytes
    round: int
    attempt: int
    previous_result_digest: bytes
    previous_checkpoint: bytes = b""


def make_header(
    site: TargetSite,
    settings: RunSettings,
    position: AttemptPosition,
    *,
    plan: RoundPlan,
    target: TargetOutput | None,
    model: Vector,
    session: SessionPlan,
    words: WordFormat,
    with_metrics: bool,
) -> Signed[Header]:
    """Sign the header of an attempt, with a fresh session id."""
    to_sources = Visibility.SUM in session.levels.values()
    body = header_of(
        Federation(site.roster.digest(), len(site.sources), site.trainer.layers),
        settings,
        position,
        rule=terms_of(plan),
        target=published_terms(target, plan, to_sources=to_sources),
        gap_gradient=gap_gradient_digest(target, to_sources=to_sources),
        features=feature_terms(target),
        model_digest=sha256(vector_to_wire(model)).digest(),
        session=session,
        words=words,
        with_metrics=with_metrics,
    )
    return site.signer.sign(draw(site.random_bytes, SESSION_ID_BYTES), NO_CONTEXT, body)


@dataclass(frozen=True, slots=True)
class Federation:
    """The facts about a federation in every header: its roster, number of sources, and layers."""

    roster_digest: bytes
    sources: int
    layers: LayerTable


def header_of(
    federation: Federation,
    settings: RunSettings,
    position: AttemptPosition,
    *,
    rule: RuleTerms,
    target: TargetTerms | None,
    gap_gradient: bytes,
    features: FeatureTerms | None,
    model_digest: bytes,
    session: SessionPlan,
    words: WordFormat,
    with_metrics: bool,
) -> Header:
    """The header of an attempt. ``with_metrics`` requires that every participant reports loss and accuracy."""
    behind: LayerTable = () if features is None else ((PULL_LAYER, (features.rows, features.width)),)
    if rule.rule == Rule.ANALYTIC:
        behind = ((GRAM_LAYER, (moments_length(federation.layers[0][1][-1]),)),)
    return Header(
        run_id=position.run_id,
        round=position.round,
        attempt=position.attempt,
        levels=tuple(session.levels[index] for index in session.participants),
        rule=rule,
        target=target,
        layers=tuple(
            Layer(name, shape, settings.clip, limit)
            for (name, shape), limit in zip((*federation.layers, *behind), words.ranges, strict=True)
        ),
        architecture_digest=architecture_digest(federation.layers),
        model_digest=model_digest,
        roster_digest=federation.roster_digest,
        participants=session.participants,
        threshold=session.threshold,
        modulus_bits=words.bits,
        n_max=n_max_for(federation.sources),
        max_samples=settings.max_samples,
        training_deadline_ms=round(1000 * settings.training_deadline_s),
        phase_deadline_ms=round(1000 * settings.phase_deadline_s),
        previous_result_digest=position.previous_result_digest,
        previous_checkpoint=position.previous_checkpoint,
        cohort_size=session.cohort_size,
        cohort_quorum=session.cohort_quorum,
        sum_quorum=session.sum_quorum,
        norm_cap=session.norm_cap,
        graph=session.graph,
        metrics=with_metrics,
        sources_keep=settings.sources_keep,
        down_link=settings.down_link,
        gap_gradient_digest=gap_gradient,
        features=features,
        key_agreement=settings.key_agreement,
    )


def n_max_for(sources: int) -> int:
    """``n_max`` of the encoding: more inputs than there are, so that a sum of noise exceeds the decoder's range."""
    return 2 * sources


def rules_of_run(strategy: Strategy) -> list[RuleTerms]:
    """Every rule that can be in a header of the run, each once."""
    return list(dict.fromkeys(map(terms_of, possible_plans(strategy))))


def schedule_of(run_id: bytes, settings: RunSettings, sources: int) -> Schedule | None:
    """The schedule of a run: everything that its headers can ask for; None if no source takes part."""
    rules = tuple(rules_of_run(settings.strategy))
    if not rules:
        return None
    return Schedule(
        run_id=run_id,
        rounds=settings.strategy.source_rounds,
        rules=rules,
        learning_rate=settings.learning_rate,
        clip=settings.clip,
        modulus_bits=narrowest(settings.bits, n_max_for(sources)),
        n_max=n_max_for(sources),
        max_samples=settings.max_samples,
        training_deadline_ms=round(1000 * settings.training_deadline_s),
        phase_deadline_ms=round(1000 * settings.phase_deadline_s),
        norm_cap_kappa=settings.kappa,
        norm_cap_granularity=settings.norm_cap_granularity,
        sources_keep=settings.sources_keep,
        key_agreement=settings.key_agreement,
    )


_NO_DIGEST = bytes(DIGEST_BYTES)
_STEPS = 2


def expected_header(config: FederationConfig) -> Header:
    """The header of the last round that sources take part in, with every source present.

    Sources have the roster indices 1 to N in the order of the configuration. Digests are zeros, except that of the
    architecture; the target's numbers are made up, except its learning rate.

    Raises:
        ConfigError, DataError: the task or its model cannot be used; no plan of levels serves all sources; or no source
            takes part under this strategy.
    """
    settings = settings_of(config, _NO_DIGEST)
    strategy = settings.strategy
    plans = ((number, round_plan(strategy, number)) for number in range(strategy.rounds, 0, -1))
    number, plan = next((one for one in plans if one[1].needs_sources), (0, None))
    if plan is None:
        raise ConfigError("strategy.rule", f"under {strategy.rule} no source takes part", hint="there is no header")
    names = dict(enumerate(config.federation.sources, start=1))
    session = Planner(names, settings).plan({index: config.levels[name] for index, name in names.items()})
    learning_rate = config.training.target.learning_rate * plan.learning_rate_factor
    if not plan.uses_target_statistics:
        target = None
    elif session.sum_quorum:  # some source is at ``sum``, and gets what the rule needs of the target
        target = TargetTerms(_STEPS, learning_rate, _NO_DIGEST, mean_square=1.0, scatter=1.0)
    else:
        target = TargetTerms(_STEPS, learning_rate)
    task = TaskSettings(
        target=config.federation.target,
        sources=config.federation.sources,
        data_dir=config.task.data_dir,
        options=config.task.options,
    )
    model = build_model(load_task(config.task.factory, task), derive_seed(0, "model"))
    layers, features = layer_table(model), None
    if plan.rule.releases_features:
        features = FeatureTerms(config.strategy.feature_rows, feature_width(model), _NO_DIGEST)
    if plan.rule.adds_moments:
        require_frozen_features(model)
    words = len(layers) + (features is not None or plan.rule.adds_moments)
    return header_of(
        Federation(_NO_DIGEST, len(names), layers),
        settings,
        AttemptPosition(bytes(RUN_ID_BYTES), number, 1, b""),
        rule=terms_of(plan),
        target=target,
        gap_gradient=_NO_DIGEST if plan.rule.attends and session.sum_quorum else b"",
        features=features,
        model_digest=_NO_DIGEST,
        session=session,
        words=WordFormat(narrowest(settings.bits, n_max_for(len(names))), (settings.clip,) * words),
        with_metrics=not config.training.source.with_noise,
    )
