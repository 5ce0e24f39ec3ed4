"""A policy in words: what the aggregator can and cannot learn of a site under it, and what that rests on.

The privacy budget of a policy in words: what it bounds, what it does not, and what training without noise means.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from securefda.privacy.events import ASSUMPTIONS
from securefda.protocol.messages import Visibility
from securefda.rules.strategy import Rule
from securefda.site.policy.measured import members_found
from securefda.site.policy.model import SELECTION, SourcePolicy
from securefda.site.policy.verdict import rules_that_publish_the_target, rules_that_send_features
from securefda.text import counted

_OF_USE = 20.0
"""Epsilon above which a guess may as well be certain: e^20 is 5e8."""


def budget_in_short(policy: SourcePolicy) -> str:
    """For a line that has other numbers in it."""
    dp = policy.dp
    if not dp.required:
        return "training without noise permitted"
    return f"noise required, epsilon at most {dp.target_epsilon:g} at delta {dp.target_delta:g}"


def budget_in_words(policy: SourcePolicy, site: str) -> tuple[str, ...]:
    """What noise bounds of all that leaves ``site``, what counts it, and what stays outside, a few sentences each."""
    if policy.dp.required:
        bounded = f"{site} trains with noise (DP-SGD) or not at all, so all that leaves it is bounded: {_bound(policy)}"
        return (bounded, _ledger(site), *_not_covered(policy, site), _measured(policy))
    bounded = (
        f"Where its settings set training.dp.noise-multiplier, {site} trains with noise (DP-SGD), and of such rounds: "
        f"{_bound(policy)}"
    )
    return (_without_noise(policy, site), bounded, _ledger(site), *_not_covered(policy, site), _measured(policy))


def _bound(policy: SourcePolicy) -> str:
    dp = policy.dp
    return (
        f"over all rounds and runs of a data set together, at most epsilon = {dp.target_epsilon:g} at delta = "
        f"{dp.target_delta:g} of each row, added or removed. {_odds(dp.target_epsilon)} This holds against the "
        "aggregator, every other site and any holder of the model, also if all of them work together, at every level."
    )


def _odds(epsilon: float) -> str:
    if epsilon > _OF_USE:
        return "So large an epsilon bounds nothing of use: a guess whether a row was trained on may be certain."
    ratio = math.exp(epsilon)
    # Upper bounds are rounded up.
    times = f"{math.ceil(ratio * 100) / 100:.2f}" if ratio < 100 else f"{math.ceil(ratio)}"
    return (
        "Someone who guesses, at even odds and knowing all other rows, whether a given row was trained on is right at "
        f"most e^epsilon = {times} times as often as wrong, apart from delta."
    )


def _ledger(site: str) -> str:
    return (
        f"The ledger at {site} counts it, before each round trains, since it was opened or last reset; a reset takes a "
        f"reason and {site}'s signature, and what was spent before it comes on top. A round that would cost more than "
        "is left is not trained (exit code 11)."
    )


def _without_noise(policy: SourcePolicy, site: str) -> str:
    line = (
        f"{site} may train without noise (dp.required = false), as its own settings say. The ledger does not count "
        "such rounds, and after one of them no epsilon holds for all that left of these rows. What protects then: "
    )
    if policy.visibility is Visibility.INDIVIDUAL:
        return (
            line + "towards the aggregator nothing. What an update, and every later model, tells of a row is unbounded."
        )
    return line + (
        "sums hide which of their sources a part is of. They do not hide what the parts together tell: whether a row "
        "was trained on, or its values, may show in a sum and in every later model, and nothing bounds it."
    )


def _not_covered(policy: SourcePolicy, site: str) -> tuple[str, ...]:
    return (
        f"Not covered: {site}'s number of rows, which is taken as public, as are its steps and sampling rate, which "
        f"follow from it; and when and for how long {site} trains.",
        "Not covered: more than one row at a time. Several rows of one patient are not one unit: of two rows together "
        f"epsilon is {2 * policy.dp.target_epsilon:g}, at a larger delta, and so on. A row that is also in another "
        "data set, or at another site, is counted there by itself.",
    )


def _measured(policy: SourcePolicy) -> str:
    """What attacks found in the smallest sum that the policy permits, colluders not counted."""
    return members_found(1 if policy.visibility is Visibility.INDIVIDUAL else policy.min_others + 1)


@dataclass(frozen=True, slots=True)
class Explanation:
    """What a policy means, one sentence or a few in each entry.

    Attributes:
        summary: the numbers in one line.
        learns: what the aggregator can learn of the site, with every peer following the protocol or not.
        does_not_learn: what it cannot, as long as ``assumes`` holds.
        budget: what noise bounds, what counts it, what it leaves out, and what holds without it.
        target_pays: what the sources learn of the target.
        keeps: what the site keeps of the model at the end of a run.
        assumes: what the claims rest on.
    """

    summary: str
    learns: tuple[str, ...]
    does_not_learn: tuple[str, ...]
    budget: tuple[str, ...]
    target_pays: tuple[str, ...]
    keeps: tuple[str, ...]
    assumes: tuple[str, ...]

    def text(self) -> str:
        """All of it, for people."""
        parts = [self.summary]
        for heading, lines in (
            ("The aggregator can learn", self.learns),
            ("It cannot learn", self.does_not_learn),
            ("What noise bounds", self.budget),
            ("What it costs the target", self.target_pays),
            ("What it keeps of the model", self.keeps),
            ("What this rests on", self.assumes),
        ):
            parts.append("\n".join([f"{heading}:", *(f"  - {line}" for line in lines)]))
        return "\n\n".join(parts)


def explain(policy: SourcePolicy, site: str, sources: int | None = None) -> Explanation:
    """Say what ``policy`` lets the aggregator learn of ``site``.

    Args:
        policy: of the site, accepted by :func:`securefda.site.policy.require_satisfiable` if ``sources`` are known.
        site: the site's id.
        sources: number of sources of the federation, N; None where it is not known.
    """
    facts = _Facts(policy, site, "the federation's" if sources is None else f"the federation's N = {sources}")
    return Explanation(
        summary=_summary(facts, sources),
        learns=(*_seen(facts), *_always_seen(facts)),
        does_not_learn=_hidden(facts),
        budget=budget_in_words(policy, site),
        target_pays=_target_pays(facts),
        keeps=_model_left(facts),
        assumes=_assumptions(facts),
    )


@dataclass(frozen=True, slots=True)
class _Facts:
    policy: SourcePolicy
    site: str
    of_all: str

    @property
    def others(self) -> str:
        """The others that hide this site, in words."""
        trusted = f" of its {len(self.policy.trusted_peers)} trusted peers" if self.policy.trusted_peers else ""
        colluding = f", not counting {self.policy.max_colluders} that may collude with the aggregator"
        return (
            f"at least {self.policy.min_others} other sources{trusted}{colluding if self.policy.max_colluders else ''}"
        )


def _summary(facts: _Facts, sources: int | None) -> str:
    policy = facts.policy
    line = f"{facts.site} permits at most level {policy.max_visibility}, with min-others = {policy.min_others}"
    line += (
        f", max-colluders = {policy.max_colluders}, kappa = {policy.norm_cap.kappa:g} per {policy.norm_cap.granularity}"
    )
    line += f"; {budget_in_short(policy)}"
    if sources is None or policy.visibility is Visibility.INDIVIDUAL:
        return f"{line}."
    spare = sources - policy.smallest_sum
    lost = f"up to {spare} of them may be lost in a round" if spare else "all of them must answer in every round"
    return f"{line}. A sum opens over {policy.smallest_sum} of N = {sources} sources at least: {lost}."


def _seen(facts: _Facts) -> tuple[str, ...]:
    """What the level itself shows, the most open one first: a header may always ask for less."""
    policy, site = facts.policy, facts.site
    lines = []
    # Loss and accuracy are figures of the rows without noise: one source with noise keeps those of all at home.
    sums = "rows"
    if not policy.dp.required:
        sums += ", of losses and accuracies where no source of the round trains with noise"
    if SELECTION in policy.allowed_rules:
        sums += ", and of estimated errors of the rules"
    sum_line = (
        f"At level sum: one weighted sum per round over at least {policy.smallest_sum} of {facts.of_all} sources, in "
        f"which {site}'s part is one term beside those of {facts.others}. With it come the sums of {sums}."
    )
    if policy.visibility is Visibility.INDIVIDUAL:
        names = {"samples": "its number of training rows", "loss": "its mean loss", "accuracy": "its accuracy"}
        beside = ", ".join(names[name] for name in names if name in policy.metadata.may_leave)
        clear = f"At level individual: {site}'s own update of every round, in clear, with {beside}. "
        if policy.dp.required:
            clear += "What it tells of one row is bounded by noise alone (below). "
        else:
            clear += "From an update without noise it can tell much about the rows behind it. "
        if set(policy.metadata.may_leave) - {"samples"}:
            clear += "Mean loss and accuracy leave only in rounds in which no source trains with noise. "
        lines.append(clear + "min-others, max-colluders and norm-cap.kappa protect nothing at this level.")
    if policy.visibility <= Visibility.COHORT:
        lines.append(
            f"At level cohort: one such sum per round over a cohort of at least {policy.smallest_sum} sources, drawn "
            f"by lot again for every round, beside {facts.others}. Many rounds give many different sums with {site} in "
            "them, which together tell more of it than one sum does. No norm cap holds for cohorts: where its part "
            "is much larger than the others', such a sum shows it nearly alone."
        )
    return (*lines, sum_line, _norm_report(facts))


_LENGTHS_WITHOUT_DIRECTION = ("source_only", "fedavg", "fedda")


def _norm_report(facts: _Facts) -> str:
    """What the other sources of a sum see for the caps, and what a colluding one of them could pass on."""
    site, policy = facts.site, facts.policy
    condition = "Where the header carries a norm cap" if policy.norm_cap.kappa == 0 else "At level sum"
    count = "one number per layer" if policy.norm_cap.granularity == "layer" else "one number, or one per layer"
    line = (
        f"{condition}: nothing more by itself. But the other sources of the sum see how large {site}'s part is, "
        f"{count} and round (the norm, weighted by rows, rounded down to a step of 2^(1/4), or of 2^(1/2) in a "
        "layer of fewer than 256 parameters), and one that colludes can tell the aggregator."
    )
    if not policy.max_colluders:
        return line
    if policy.norm_cap.reports == "hidden":
        keys = f'max-colluders = {policy.max_colluders}, norm-cap.reports = "hidden"'
        return f"{line} So {site} takes part only if it trains with noise ({keys})."
    line += f' {site}\'s policy accepts that (norm-cap.reports = "colluders-may-see").'
    choosing = [name for name in policy.allowed_rules if name not in _LENGTHS_WITHOUT_DIRECTION]
    if choosing:
        line += (
            f" With the rules {', '.join(choosing)} these numbers depend on what the target publishes beside the "
            f"model: a vector that is made up turns them into how far {site}'s update points in a direction of the "
            "target's choice."
        )
    return line


def _always_seen(facts: _Facts) -> tuple[str, ...]:
    release, site = facts.policy.release, facts.site
    if release.max_runs == 0:
        runs = f"No run begins without the consent of {site}'s operator."
    else:
        begin = "one run begins" if release.max_runs == 1 else f"{release.max_runs} runs begin"
        runs = f"In 24 hours at most {begin}; any further one takes the consent of {site}'s operator."
    return (
        f"Over a run: up to {counted(release.max_rounds, 'round')} of this, in each round one release at most "
        f"whatever the number of attempts ({release.max_attempts}). {runs} After {release.max_unfinished} rounds that "
        f"came to no result, of which each result pays for one, {site} leaves. Sums over different sets of sources "
        "can be subtracted from each other: "
        f"what differs then is of few sources, or of {site} alone where it was the one that stayed away.",
        *_held_back(facts),
        _models(facts),
        *_attention(facts),
        *_pull(facts),
        f"That {site} takes part and when, how long it takes, the digest of its model's architecture, its software "
        "version, its max-visibility, and of a refusal the key.",
    )


def _held_back(facts: _Facts) -> tuple[str, ...]:
    least, site = facts.policy.release.min_rows, facts.site
    if least == 1:
        return ()
    return (
        f"Where {site} trains without noise: no change of a parameter that fewer than {least} of its rows moved in the "
        "round. Rows that moved it next to nothing count as well.",
    )


def _attending(policy: SourcePolicy) -> tuple[str, ...]:
    return tuple(rule.value for rule in Rule if rule.attends and rule.value in policy.allowed_rules)


def _attention(facts: _Facts) -> tuple[str, ...]:
    """What a target without labels can do with what it publishes, where the policy lets it."""
    site, policy = facts.site, facts.policy
    attending = _attending(policy)
    if not attending or policy.visibility is not Visibility.SUM:
        return ()
    bound = policy.limits.attention_bound_max
    return (
        f"With {', '.join(attending)}, how much {site}'s update weighs follows from a gradient that the target "
        f"publishes: up to {math.exp(2 * bound):.3g} times what another weighs with as many rows "
        f"(attention-bound-max = {bound:g}). The sum also holds the sum of all sources' shares, one number.",
    )


def _pull(facts: _Facts) -> tuple[str, ...]:
    """What a target learns by the features that it sends, where the policy lets it."""
    site, releasing = facts.site, rules_that_send_features(facts.policy)
    if not releasing:
        return ()
    return (
        f"With {', '.join(releasing)}, {site} compares features of its rows with features that the target sends, and "
        f"answers with its update and a pull: for each row that the target sent, in which direction {site}'s own "
        "features lie. The target chooses what it sends. No feature of a row leaves.",
    )


def _models(facts: _Facts) -> str:
    """A model is a question: what it may be, and how fast it may change."""
    site, policy = facts.site, facts.policy
    listed = len(policy.model.digests)
    first = f"one of the {listed} first models that the policy lists" if listed else "the task's own first model"
    return (
        f"What a model asks of the rows: an update answers the model that it is trained from. That is {first}, then "
        "the model of the last finished round and no other, and a finished round moves no group of layers further than "
        f"{policy.limits.model_step:g} times as far as {site}'s own training has moved it (model-step). So a target "
        "leads a model to where it reads more of the rows only over several finished rounds: this is a rate, no wall."
    )


def _hidden(facts: _Facts) -> tuple[str, ...]:
    policy, site = facts.policy, facts.site
    without = "that has a bound only where it trains with noise, as said below."
    bounds = "what they tell of one row is bounded, as said below." if policy.dp.required else without
    always = (
        f"Rows, files or anything else of {site} that is not named above: there is no message for it. This does "
        f"not say that an update or a sum tells nothing about rows: {bounds}",
        "A rule, a task, a model or a number beyond this policy is refused before training, and only the key leaves.",
    )
    if policy.visibility is Visibility.INDIVIDUAL:
        return (f"Where it asks for level individual, nothing of {site}'s update stays hidden from it.", *always)
    helped = (
        f", and whichever {policy.max_colluders} of the other sources tell it all they know"
        if policy.max_colluders
        else ""
    )
    return (
        f"{site}'s update, or its row count, loss or accuracy of a round on their own: what leaves is only a term of a "
        f"sum beside {facts.others}. This holds whatever the aggregator does{helped}; what the sums and lengths listed "
        "above tell by themselves is excepted.",
        _norm_cap_claim(facts),
        *always,
    )


def _norm_cap_claim(facts: _Facts) -> str:
    bounds, site = facts.policy.norm_cap, facts.site
    if bounds.kappa == 0:
        return (
            f"Nothing is said here of sums in which {site}'s part is much larger than all others: with kappa = 0 a "
            "sum may then show it nearly alone."
        )
    place = (
        "in every layer" if bounds.granularity == "layer" else "over the model as a whole, though not in every layer,"
    )
    claim = (
        f"At level sum, a sum of which {site} makes up most: {place} the others that count hold together at least "
        f"{bounds.kappa:g} times the squared norm of its part. This bounds lengths, not directions: parts "
        "that point the same way show that way, and others that are opposed cancel."
    )
    projected = any(rule.projects and rule.value in facts.policy.allowed_rules for rule in Rule)
    if not (bounds.unfiltered_projection and projected):
        return claim
    return claim + (
        " This site permits FedGP without its filter (unfiltered-projection): the target's update then decides the "
        "sign of each part as well, and one that is made for it can let the others' parts, where they are alike, "
        f"cancel each other, so that the sum is nearly {facts.site}'s part alone although all norms are as asked."
    )


def _target_pays(facts: _Facts) -> tuple[str, ...]:
    published, attending = rules_that_publish_the_target(facts.policy), _attending(facts.policy)
    releasing = rules_that_send_features(facts.policy)
    if not published and not attending and not releasing:
        return ("Nothing: under the allowed rules the target publishes no update of its own.",)
    unlabelled = []
    if attending:
        unlabelled.append(
            f"With {', '.join(attending)} at level sum every source sees the gradient of the gap, which depends on the "
            "features of the target's rows. Nothing bounds what it tells of one of them."
        )
    if releasing:
        unlabelled.append(
            f"With {', '.join(releasing)} every source sees features of some of the target's rows in each round, at "
            "every level, and can try to reconstruct the rows from them. The target's own settings have to allow it."
        )
    if not published:
        return tuple(unlabelled)
    return (
        f"With the rules {', '.join(published)} at level sum every source sees the target's own update g_T of the "
        "round, since the rule runs inside the sources. The published change of the model partly shows it anyway (in "
        "this project's studies the median cosine of the two was between 0.3 and 1.0, by task and rule; each round's "
        "is in the target's report). No source's policy protects the target's rows; noise in the target's own training "
        "(its training.dp) bounds what g_T tells of one of them.",
        "At levels cohort and individual g_T stays at the target.",
        *unlabelled,
    )


def _model_left(facts: _Facts) -> tuple[str, ...]:
    site, keep = facts.site, facts.policy.model.keep
    known = f"{site} knows every model that it trains from, whatever it keeps afterwards."
    if keep == "final":
        return (f'Runs leave {site} the final model, or it takes no part (model.keep = "final").', known)
    if keep == "none":
        return (f'{site} keeps nothing of the model after a run, or it takes no part (model.keep = "none").', known)
    return (f'Each run says whether it leaves {site} the final model, or nothing of it (model.keep = "any").', known)


def _assumptions(facts: _Facts) -> tuple[str, ...]:
    policy, site = facts.policy, facts.site
    common = (
        f"{site}'s own machine and signing key are in no other hands; its process runs with the policy that "
        "the site signed.",
        f"For the privacy budget: {ASSUMPTIONS}; the random numbers of {site}'s machine cannot be guessed.",
    )
    if policy.visibility is Visibility.INDIVIDUAL:
        return (*common, "TLS 1.3 keeps the network out; towards the aggregator nothing is assumed.")
    helpers = (
        f"with at most max_colluders = {policy.max_colluders} of the other sources"
        if policy.max_colluders
        else "but with no other source"
    )
    return (
        f"Against an aggregator that deviates from the protocol in any way, {helpers} on its side; every further one "
        f"takes one off min-others = {policy.min_others}.",
        "The roster lists real, separate sites whose keys are their own.",
        "X25519, AES-256, HKDF-SHA256 and Ed25519 are sound.",
        *common,
    )
