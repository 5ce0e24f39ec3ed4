"""Checks by a site's policy: of headers, schedules, tasks, training and messages.

A ``check`` raises for the first key that forbids the request; the functions that yield refusals go through all keys.
`plan_levels` finds a visibility level for each source that no policy forbids, and `require_satisfiable` checks before
any round whether a policy can be met at all.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import ParamSpec

import numpy as np

from securefda.errors import ConfigError, FaultyAggregatorError, PolicyRefusal
from securefda.protocol.header_checks import SessionLimits, threshold_is_sound
from securefda.protocol.messages import Granularity, Header, RuleTerms, Schedule, SourcesKeep, Update, Visibility
from securefda.rules.analytic import Floats, rare_values
from securefda.rules.strategy import Rule
from securefda.site.policy.schema import SELECTION, SourcePolicy, hints_of_keys, require_known_peers
from securefda.task_digest import columns_read, task_digest
from securefda.text import counted, names

Checked = ParamSpec("Checked")
Refusals = Iterator[PolicyRefusal]
"""What a policy has against a request, in the order in which a source looks."""


def plan_levels(permitted: Mapping[str, Visibility], smallest_sum: int) -> dict[str, Visibility]:
    """Give each source the level that its policy permits if enough sources permit the same, else one that hides more.

    A sum needs ``smallest_sum`` sources. If fewer are at ``sum``, the sources at ``cohort`` join them, and then those
    at ``individual``: no policy forbids hiding more. If too few are at ``cohort``, they join the sum; without a sum,
    those at ``individual`` join them.

    Args:
        permitted: site id -> the most that may be seen of it.
        smallest_sum: fewest sources over which a sum may be opened.

    Returns:
        Site id -> its level.

    Raises:
        ConfigError: no plan serves all; the key is ``max-visibility``, and the sites that cannot be served are named.
    """
    levels = dict(permitted)
    for seen in (Visibility.COHORT, Visibility.INDIVIDUAL):
        if 0 < _count(levels, Visibility.SUM) < smallest_sum:
            _move(levels, seen, Visibility.SUM)
    if 0 < _count(levels, Visibility.COHORT) < smallest_sum:
        if _count(levels, Visibility.SUM):
            _move(levels, Visibility.COHORT, Visibility.SUM)
        else:
            _move(levels, Visibility.INDIVIDUAL, Visibility.COHORT)
    for level in (Visibility.SUM, Visibility.COHORT):
        if 0 < _count(levels, level) < smallest_sum:
            sites = [site for site, own in levels.items() if own is level]
            permit = "permits" if len(sites) == 1 else "permit"
            why = (
                f"{', '.join(sites)} {permit} no more than {level.label}, and a sum needs {smallest_sum} sources "
                f"(min-others + max-colluders + 1); there are {len(sites)}"
            )
            raise ConfigError(
                "max-visibility", why, hint="more sources have to take part, or a site's owner permits more"
            )
    return levels


def _count(levels: Mapping[str, Visibility], level: Visibility) -> int:
    return sum(own is level for own in levels.values())


def _move(levels: dict[str, Visibility], seen: Visibility, hidden: Visibility) -> None:
    for site, own in levels.items():
        if own is seen:
            levels[site] = hidden


def require_satisfiable(policy: SourcePolicy, site: str, sources: Sequence[str], left: Collection[str] = ()) -> None:
    """Refuse a policy that no header over these sources could satisfy.

    A site that lets its update leave in clear has no sum to be hidden in, and asks nothing of the others.

    Args:
        policy: of ``site``.
        site: id of the source whose policy it is.
        sources: ids of all sources of the federation, ``site`` among them.
        left: ids of those that have revoked their keys: no sum holds them, and a policy may still name them.

    Raises:
        ConfigError: names the key, the site and the number of sources: ``trusted-peers`` (an unknown site, or too few),
            ``min-others`` or ``quantisation.n-max``.
    """
    n = len(sources)
    require_known_peers(policy, sources)
    if policy.quantisation.n_max < n:
        why = f"{site} permits sums laid out for {policy.quantisation.n_max} inputs, and the federation has {n} sources"
        raise ConfigError("quantisation.n-max", why, hint=f"raise it to {2 * n}, with which a sum of noise shows")
    if policy.visibility is Visibility.INDIVIDUAL:
        return
    gone = [one for one in sources if one in left and one != site]
    n -= len(gone)
    since = f", since {names(gone)} left" if gone else ""
    if policy.smallest_sum > n:
        beside = f" beside max-colluders = {policy.max_colluders}" if policy.max_colluders else ""
        why = (
            f"{site} asks for min-others = {policy.min_others}{beside}, so for {policy.smallest_sum} sources in every "
            f"sum, itself among them, and the federation has {n}{since}"
        )
        raise ConfigError("min-others", why, hint="lower min-others or max-colluders, or enrol more sources")
    trusted = set(policy.trusted_peers or sources) - {site, *gone}
    needed = policy.min_others + policy.max_colluders
    if len(trusted) < needed:
        why = f"{site} trusts {len(trusted)} others, and min-others + max-colluders = {needed} must be in every sum"
        why += since
        raise ConfigError("trusted-peers", why, hint="list more sites, or none for the whole roster")


_OWNER = "the site's owner decides; its policy.toml must allow it"
_HINTS = hints_of_keys() | {
    "dp.pull": "set a strategy.rule at the aggregator that compares no features",
    "dp.metrics": "ask the aggregator's operator: this site's Join said that it has none to give",
}
_RELEASING_RULES = frozenset(rule.value for rule in Rule if rule.releases_features)
_PROJECTING_RULES = frozenset(rule.value for rule in Rule if rule.projects)


def hint_for(key: str) -> str:
    """Return a hint for the operator about a refusal of this key."""
    return _HINTS.get(key) or _OWNER


def _refusal(key: str, asked: object, allowed: object) -> PolicyRefusal:
    return PolicyRefusal(key, asked, allowed, hint=hint_for(key))


def refusals_of_header(
    policy: SourcePolicy,
    header: Header,
    own_index: int,
    limits: SessionLimits | None = None,
    *,
    with_noise: bool = False,
) -> Refusals:
    """Yield what a policy has against a header that asks for more than it permits; a key can come twice.

    This compares the header only with the policy. The session checks signatures, roster, freshness and the site's own
    model, and with :meth:`SourcePolicy.session_limits` also the sets of sources that form later.

    Args:
        policy: of this site.
        header: of the attempt.
        own_index: roster index of this site.
        limits: the policy's limits over the site's roster, so that a refusal can name ``trusted-peers``. Without them,
            and for cohorts, whose members are known later, only the session's checks refuse.
        with_noise: whether this site trains by DP-SGD.

    Raises:
        FaultyAggregatorError: HEADER_PARTICIPANTS, the header does not name this site.
    """
    if own_index not in header.participants:
        raise FaultyAggregatorError("HEADER_PARTICIPANTS", "the header does not name this site")
    yield from _refusals_of_visibility(policy, header, own_index, limits)
    if header.norm_cap is not None and header.level_of(own_index) is Visibility.SUM:
        yield from _refusals_of_norm_reports(policy, with_noise=with_noise)
    if header.level_of(own_index) is not Visibility.INDIVIDUAL:
        yield from _refusals_of_key_agreement(policy, header)
    yield from _refusals_of_rule(policy, header.rule)
    yield from _refusals_of_pull(header.rule, with_noise=with_noise)
    digest = header.architecture_digest.hex()
    if policy.architectures and digest not in policy.architectures:
        yield _refusal("architectures", digest, f"one of the {len(policy.architectures)} listed")
    yield from _refusals_of_encoding(policy, header, {layer.name: layer.clip for layer in header.layers})
    model_bytes, most = 4 * header.n_summed, policy.limits.model_bytes_max
    if model_bytes > most:
        yield _refusal("limits.model-bytes-max", f"{model_bytes}", f"at most {most}")
    yield from _refusals_of_work(policy, header, header.target.learning_rate if header.target else None)
    yield from _refusals_of_keep(policy, header.sources_keep)
    release = policy.release
    if header.attempt > release.max_attempts:
        yield _refusal("release.max-attempts", f"attempt {header.attempt}", f"up to {release.max_attempts}")
    if header.round > release.max_rounds:
        yield _refusal("release.max-rounds", f"round {header.round}", f"up to {release.max_rounds}")


def refusals_of_schedule(policy: SourcePolicy, schedule: Schedule, *, with_noise: bool = False) -> Refusals:
    """Yield what a policy has against the headers that a run's schedule announces.

    Requests that depend on who takes part, or that may never be made, are left to :func:`refusals_of_header`. That
    function looks at every header in full, since a schedule promises nothing. ``with_noise`` is as there.
    """
    for terms in schedule.rules:
        yield from _refusals_of_rule(policy, terms)
        yield from _refusals_of_pull(terms, with_noise=with_noise)
        if policy.visibility is Visibility.SUM:  # it is at no other level
            yield from _refusals_of_projection(policy, terms)
        adapts = terms.select or any(terms.rule == rule.value and rule.adapts for rule in Rule)
        rate = schedule.learning_rate * terms.learning_rate_factor if adapts else None
        yield from _refusals_of_work(policy, schedule, rate)
    if policy.visibility is not Visibility.INDIVIDUAL:  # at that level it is in no session
        yield from _refusals_of_key_agreement(policy, schedule)
    if policy.visibility is Visibility.SUM:
        yield from _refusals_of_kappa(policy, schedule.norm_cap_kappa, schedule.norm_cap_granularity)
    yield from _refusals_of_encoding(policy, schedule, {"": schedule.clip})
    yield from _refusals_of_keep(policy, schedule.sources_keep)
    if schedule.rounds > policy.release.max_rounds:
        yield _refusal("release.max-rounds", f"{schedule.rounds} rounds", f"up to {policy.release.max_rounds}")


def refusals_of_task(policy: SourcePolicy, factory: str, options: Mapping[str, object]) -> Refusals:
    """Yield what a policy has against the task that this site's settings name, ``"package.module:Class"``.

    Args:
        policy: of this site.
        factory: the class.
        options: of the task.
    """
    if policy.allowed_tasks and factory not in policy.allowed_tasks:
        digest = task_digest(factory, options)
        pinned = f"{factory}@{digest}" if digest else f"{factory}, whose code is not here"
        if pinned not in policy.allowed_tasks:
            yield _refusal("allowed-tasks", pinned, ", ".join(policy.allowed_tasks))
    agreed = policy.agreement.columns
    if agreed and (more := [name for name in columns_read(options) if name not in agreed]):
        yield _refusal("agreement.columns", ", ".join(more), ", ".join(agreed))


def refusals_of_day(policy: SourcePolicy, unix_s: float, *, with_noise: bool) -> Refusals:
    """Yield what a policy has against a round that begins now, because a day has passed.

    Args:
        policy: of this site.
        unix_s: the present time.
        with_noise: whether this site trains by DP-SGD, which spends the budget.
    """
    today = datetime.fromtimestamp(unix_s, UTC).date().isoformat()
    ends = {"agreement.expires": policy.agreement.expires} | ({"dp.expires": policy.dp.expires} if with_noise else {})
    for name, last in ends.items():
        if last and today > last:
            yield _refusal(name, f"a round on {today}", f"rounds until {last}")


def refusals_of_training(policy: SourcePolicy, noise_multiplier: float, max_grad_norm: float) -> Refusals:
    """Yield what a policy has against how this site's own settings train; the ledger decides about the budget.

    Args:
        policy: of this site.
        noise_multiplier: of DP-SGD, from the settings; 0 for training without noise.
        max_grad_norm: clip norm of a row's gradient; ignored without noise.
    """
    with_noise, largest = noise_multiplier > 0, policy.dp.max_grad_norm
    if policy.dp.required and not with_noise:
        yield _refusal("dp.required", "training without noise", "DP-SGD alone")
    if with_noise and not max_grad_norm <= largest:
        yield _refusal("dp.max-grad-norm", f"{max_grad_norm:g}", f"at most {largest:g}")
    if policy.visibility is Visibility.SUM and policy.norm_cap.kappa > 0:
        yield from _refusals_of_norm_reports(policy, with_noise=with_noise)


def refusals_of_alignment(policy: SourcePolicy, level: Visibility) -> Refusals:
    """Yield what a policy has against a round in which a cohort sums its members' factors of alignment.

    A factor tells how many steps a source takes, and so about how many rows it has. The target chooses its own steps
    and rate in each round, so sums over many rounds can tell each member's factor. So ``metadata.may-leave`` must list
    ``samples``, which at ``individual`` it always does.
    """
    if level is Visibility.COHORT and "samples" not in policy.metadata.may_leave:
        asked = "its number of steps, in sums of a cohort that is not aligned"
        yield _refusal("metadata.may-leave", asked, ", ".join(policy.metadata.may_leave) or "none")


def _raising(refusals: Callable[Checked, Refusals]) -> Callable[Checked, None]:
    """Return the check that raises the first of these refusals, with which a source ends."""

    def check(*args: Checked.args, **kwargs: Checked.kwargs) -> None:
        for refusal in refusals(*args, **kwargs):
            raise refusal

    return check


check_alignment = _raising(refusals_of_alignment)
check_header_by_policy = _raising(refusals_of_header)
check_day = _raising(refusals_of_day)
check_schedule = _raising(refusals_of_schedule)
check_task = _raising(refusals_of_task)
check_training = _raising(refusals_of_training)


def _refusals_of_norm_reports(policy: SourcePolicy, *, with_noise: bool) -> Refusals:
    """Refuse norm reports that the policy hides: only noise bounds what a colluder could pass on."""
    if policy.max_colluders and not with_noise and policy.norm_cap.reports == "hidden":
        asked = f"a norm report that max-colluders = {policy.max_colluders} colluders would see"
        yield _refusal("norm-cap.reports", asked, "such a report only of training with noise")


def check_moments(
    policy: SourcePolicy, features: Floats, targets: Floats, sums_only: bool = False
) -> tuple[Floats, Floats]:
    """Accept rows whose second moments are to leave, and return them without rare values.

    Args:
        policy: of this site.
        features: of its rows, (n, d).
        targets: what a head fits to them, (n, c).
        sums_only: whether the targets are statistics of columns, all of which count as numbers of a row. Rare values
            of one then count as usual ones. Where a head is fitted, targets are classes, of which none can be changed.

    Returns:
        The features, (n, d), and the targets. Usual values stand in place of those that
        ``moments.min-rows-per-category`` keeps here, and in statistics ``moments.min-rows-per-class`` too.

    Raises:
        PolicyRefusal: ``moments.min-rows`` or ``moments.min-rows-per-class``. To the aggregator, the key tells that
            the site has so few rows.
    """
    _raising(refusals_of_moments)(policy, features, targets, sums_only=sums_only)
    bounds = policy.moments
    if sums_only:
        targets = _without_rare(targets, max(bounds.min_rows_per_category, bounds.min_rows_per_class))
    return _without_rare(features, bounds.min_rows_per_category), targets


def _without_rare(columns: Floats, least: int) -> Floats:
    rare, usual = rare_values(columns, least)
    return np.where(rare, usual, columns)


def refusals_of_moments(
    policy: SourcePolicy, features: Floats, targets: Floats, *, sums_only: bool = False
) -> Refusals:
    """Yield every refusal with which :func:`check_moments` could end, that one first."""
    bounds, count = policy.moments, len(features)
    width, what = (targets.shape[1], "sums") if sums_only else (features.shape[1], "features")
    needed = math.ceil(bounds.min_rows * (width + 1))
    if count < needed:
        allowed = f"at least {needed}, {bounds.min_rows:g} for each of {width} {what} and a constant"
        yield _refusal("moments.min-rows", f"second moments of {counted(count, 'row')}", allowed)
    if sums_only:
        return
    of_few = rare_values(targets, bounds.min_rows_per_class)[0].sum(axis=0)
    if of_few.any():
        asked = f"second moments of a class of {counted(int(of_few.max()), 'row')}"
        yield _refusal("moments.min-rows-per-class", asked, f"at least {bounds.min_rows_per_class}")


def check_metadata(policy: SourcePolicy, update: Update) -> None:
    """Accept an update in clear that carries only numbers that may leave beside it.

    Raises:
        PolicyRefusal: ``metadata.may-leave`` does not list one of them.
    """
    carried = {"samples": update.samples, "loss": update.loss, "accuracy": update.accuracy}
    allowed = policy.metadata.may_leave
    for name, value in carried.items():
        if value is not None and name not in allowed:
            raise _refusal("metadata.may-leave", name, ", ".join(allowed) or "none")


def check_metrics(header: Header, *, handed_in: bool, update: Update | None = None) -> None:
    """Accept a header, and an update in clear under it, unless loss or accuracy would leave that must stay.

    Args:
        header: of the attempt.
        handed_in: whether this site reports loss and accuracy at all, as its Join said; with DP-SGD it does not.
        update: the update in clear that is about to leave, if any.

    Raises:
        PolicyRefusal: ``dp.metrics``, the header asks for metrics that this site does not report, or the update carries
            metrics for which the header does not ask.
    """
    if header.metrics and not handed_in:
        raise _refusal("dp.metrics", "loss and accuracy", "neither, since noise protects what leaves this site")
    carries = update is not None and (update.loss is not None or update.accuracy is not None)
    if carries and not header.metrics:
        raise _refusal("dp.metrics", "loss or accuracy beside an update", "neither, since the header has no metrics")


def rules_that_publish_the_target(policy: SourcePolicy) -> tuple[str, ...]:
    """Return the allowed rules under which the target publishes its update to sources at ``sum``."""
    free = (Rule.FEDAVG, *(rule for rule in Rule if rule.attends or rule.is_mean_of_sources))
    return tuple(name for name in policy.allowed_rules if name not in free)


def rules_that_send_features(policy: SourcePolicy) -> tuple[str, ...]:
    """Return the allowed rules under which the target sends features to each source.

    There are none where training needs noise: the source refuses their pull, ``dp.pull``.
    """
    return () if policy.dp.required else tuple(name for name in policy.allowed_rules if name in _RELEASING_RULES)


def _refusals_of_visibility(
    policy: SourcePolicy, header: Header, own_index: int, limits: SessionLimits | None
) -> Refusals:
    level = header.level_of(own_index)
    if level < policy.visibility:
        yield _refusal("max-visibility", level.label, policy.max_visibility)
    if level is Visibility.INDIVIDUAL:
        return
    quorum = header.fewest_at_sum if level is Visibility.SUM else header.cohort_quorum
    # Sources can be lost on the way, and the others still open the sum. So the smallest sum that can open must suffice.
    others = min(len(header.at(level)), quorum) - 1 - policy.max_colluders
    if others < policy.min_others:
        yield _refusal("min-others", f"a sum with {max(0, others)} others that count", f"at least {policy.min_others}")
    n = len(header.masked)
    if not threshold_is_sound(header.threshold, n, policy.max_colluders):
        lowest = (n + policy.max_colluders) // 2 + 1
        yield _refusal(
            "max-colluders",
            f"threshold {header.threshold} of {n}",
            f"{lowest} to {n} with max-colluders = {policy.max_colluders}",
        )
    elif limits is not None:
        untrusted = limits.most_colluders(header.masked, own_index) - limits.max_colluders
        if untrusted:
            yield from _refusals_of_untrusted(header, untrusted, policy.max_colluders)
    if level is Visibility.SUM:
        if others >= policy.min_others:  # too few others are too few trusted ones as well
            yield from _refusals_of_trust(policy, header, own_index, limits)
        yield from _refusals_of_norm_cap(policy, header, own_index, limits)


def _refusals_of_untrusted(header: Header, untrusted: int, max_colluders: int) -> Refusals:
    """Sites that are not trusted could show the sources different views of a session, as colluders could."""
    n, colluders = len(header.masked), max_colluders + untrusted
    if not threshold_is_sound(header.threshold, n, colluders):
        asked = f"threshold {header.threshold} of {n}, of which {colluders} may collude or are not trusted"
        yield _refusal("trusted-peers", asked, f"{(n + colluders) // 2 + 1} or more")
    elif header.graph is not None and max_colluders <= header.graph.colluders < colluders:
        asked = f"a graph for {header.graph.colluders} colluders, and {colluders} may collude or are not trusted"
        yield _refusal("trusted-peers", asked, f"the target to set privacy.max-colluders = {colluders}")


def _refusals_of_trust(policy: SourcePolicy, header: Header, own_index: int, limits: SessionLimits | None) -> Refusals:
    if limits is None:
        return
    others = limits.fewest_trusted_at_sum(header, own_index)
    if others < limits.min_others:
        yield _refusal("trusted-peers", f"a sum with {max(0, others)} trusted others", f"at least {policy.min_others}")


def _refusals_of_norm_cap(
    policy: SourcePolicy, header: Header, own_index: int, limits: SessionLimits | None
) -> Refusals:
    """If FedGP's filter leaves a source alone in a layer, the cap there is 0. Without it, contributions can cancel."""
    asked = header.norm_cap
    if asked is not None:
        left = header.sum_quorum - 1 - policy.max_colluders
        if asked.others > left:
            yield _refusal(
                "max-colluders",
                f"norms of {asked.others} others",
                f"at most {left} with max-colluders = {policy.max_colluders}",
            )
        if limits is not None:  # the session checks this too; there it would accuse the aggregator
            left = limits.fewest_trusted_at_sum(header, own_index)
            if asked.others > left:
                yield _refusal("trusted-peers", f"norms of {asked.others} others", f"at most {left} trusted ones")
    kappa, granularity = (0.0, Granularity.LAYER) if asked is None else (asked.kappa, asked.granularity)
    yield from _refusals_of_kappa(policy, kappa, granularity)
    yield from _refusals_of_projection(policy, header.rule)


def _refusals_of_kappa(policy: SourcePolicy, kappa: float, granularity: Granularity) -> Refusals:
    bounds = policy.norm_cap
    if bounds.kappa == 0:
        return
    if kappa < bounds.kappa:
        yield _refusal("norm-cap.kappa", f"{kappa:g}" if kappa else "no norm cap", f"at least {bounds.kappa:g}")
    if granularity is Granularity.MODEL and bounds.terms is Granularity.LAYER:
        yield _refusal("norm-cap.granularity", "model", "layer")


def _refusals_of_projection(policy: SourcePolicy, terms: RuleTerms) -> Refusals:
    unfiltered = terms.rule in _PROJECTING_RULES and not terms.filter
    if policy.norm_cap.kappa and unfiltered and not policy.norm_cap.unfiltered_projection:
        yield _refusal("norm-cap.unfiltered-projection", "true", "false")


def _refusals_of_rule(policy: SourcePolicy, terms: RuleTerms) -> Refusals:
    allowed = ", ".join(policy.allowed_rules) or "none"
    # A source contributes nothing to a round of the target alone; it can only be asked for estimated errors.
    only_errors = terms.select and terms.rule == Rule.TARGET_ONLY
    if terms.rule not in policy.allowed_rules and not only_errors:
        yield _refusal("allowed-rules", terms.rule, allowed)
    if terms.select and SELECTION not in policy.allowed_rules:
        yield _refusal("allowed-rules", f"{SELECTION}, estimated errors of rules", allowed)
    bound, most = terms.attention.bound if terms.attention else 0.0, policy.limits.attention_bound_max
    if bound > most:
        yield _refusal("limits.attention-bound-max", f"{bound:g}", f"at most {most:g}")


def _refusals_of_pull(terms: RuleTerms, *, with_noise: bool) -> Refusals:
    """Refuse a pull on the target's features if training has noise: no ledger counts the pull."""
    if with_noise and terms.rule in _RELEASING_RULES:
        yield _refusal("dp.pull", f"{terms.rule}, with a pull on the target's features", "what noise protects")


def _refusals_of_encoding(policy: SourcePolicy, asked: Header | Schedule, clips: Mapping[str, float]) -> Refusals:
    """``clips`` maps layer names to clips; the name "" stands for all layers."""
    bounds = policy.quantisation
    if asked.modulus_bits < bounds.modulus_bits_min:
        yield _refusal("quantisation.modulus-bits-min", asked.modulus_bits, f"at least {bounds.modulus_bits_min}")
    for layer, clip in clips.items():
        clip_text = f"{clip:g} in layer {layer}" if layer else f"{clip:g}"
        if clip < bounds.clip_min:
            yield _refusal("quantisation.clip-min", clip_text, f"at least {bounds.clip_min:g}")
        if clip > bounds.clip_max:
            yield _refusal("quantisation.clip-max", clip_text, f"at most {bounds.clip_max:g}")
    if asked.n_max > bounds.n_max:
        yield _refusal("quantisation.n-max", asked.n_max, f"at most {bounds.n_max}")
    if asked.max_samples < bounds.max_samples_min:
        yield _refusal("quantisation.max-samples-min", asked.max_samples, f"at least {bounds.max_samples_min}")
    if asked.max_samples > bounds.max_samples_max:
        yield _refusal("quantisation.max-samples-max", asked.max_samples, f"at most {bounds.max_samples_max}")


def _refusals_of_key_agreement(policy: SourcePolicy, asked: Header | Schedule) -> Refusals:
    if asked.key_agreement.label not in policy.key_agreements:
        yield _refusal("key-agreements", asked.key_agreement.label, ", ".join(policy.key_agreements))


def _refusals_of_keep(policy: SourcePolicy, asked: SourcesKeep) -> Refusals:
    if policy.model.keep not in ("any", asked.label):
        setting = f'model.sources-keep = "{asked.label}"'
        yield _refusal("model.keep", setting, f'"{policy.model.keep}" alone')


def _refusals_of_work(policy: SourcePolicy, asked: Header | Schedule, learning_rate: float | None) -> Refusals:
    """``learning_rate`` is the target's; None if the round does not publish it."""
    limits = policy.limits
    most = {
        "learning-rate-max": (learning_rate or 0.0, limits.learning_rate_max),
        "training-deadline-s-max": (asked.training_deadline_ms / 1000, limits.training_deadline_s_max),
        "phase-deadline-s-max": (asked.phase_deadline_ms / 1000, limits.phase_deadline_s_max),
    }
    for key, (value, bound) in most.items():
        if value > bound:
            yield _refusal(f"limits.{key}", f"{value}", f"at most {bound}")
    if learning_rate is not None and learning_rate < limits.learning_rate_min:
        yield _refusal("limits.learning-rate-min", f"{learning_rate:g}", f"at least {limits.learning_rate_min:g}")
