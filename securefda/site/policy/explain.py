"""The meaning of a policy in words.

It says what the aggregator can learn of a site, what the privacy budget bounds, and what these claims assume.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from textwrap import shorten

from securefda.privacy.dp_events import ASSUMPTIONS
from securefda.protocol.messages import Visibility
from securefda.rules.strategy import Rule
from securefda.site.policy.measured import members_found
from securefda.site.policy.schema import SELECTION, SourcePolicy
from securefda.site.policy.template import RULES_OF_SOURCES
from securefda.site.policy.verdict import rules_that_publish_the_target, rules_that_send_features
from securefda.text import counted, first_of

OF_USE = 20.0
"""Epsilon above which a guess may as well be certain: e^20 is 5e8."""


def summarise_budget(policy: SourcePolicy) -> str:
    """Return the budget as a clause for a line with other numbers."""
    dp = policy.dp
    if not dp.required:
        return "training without noise permitted"
    return f"noise required, epsilon at most {dp.target_epsilon:g} at delta {dp.target_delta:g}"


def explain_budget(policy: SourcePolicy, site: str) -> tuple[str, ...]:
    """Explain in sentences what noise bounds, what counts it, and what it does not cover."""
    if policy.dp.required:
        moments = ", and adds noise to second moments" if Rule.ANALYTIC in policy.allowed_rules else ""
        bounded = f"{site} trains with noise (DP-SGD) or not at all{moments}, so all that leaves it is bounded: "
        bounded += _bound(policy)
        return (bounded, _ledger(policy, site), *_not_covered(policy, site), _measured(policy))
    bounded = (
        f"If its settings set training.dp.noise-multiplier, {site} trains with noise (DP-SGD). Such rounds are "
        f"bounded: {_bound(policy)}"
    )
    return (
        _without_noise(policy, site),
        bounded,
        _ledger(policy, site),
        *_not_covered(policy, site),
        _measured(policy),
    )


def _bound(policy: SourcePolicy) -> str:
    dp = policy.dp
    return (
        f"over all rounds and runs of a data set together, at most epsilon = {dp.target_epsilon:g} at delta = "
        f"{dp.target_delta:g} for each row, added or removed. {_odds(dp.target_epsilon)} This holds at every "
        "visibility, against the aggregator, every other site and any holder of the model, even if they all work "
        "together."
    )


def _odds(epsilon: float) -> str:
    if epsilon > OF_USE:
        return "So large an epsilon bounds nothing of use: a guess whether a row was trained on may be certain."
    ratio = math.exp(epsilon)
    # Upper bounds are rounded up.
    times = f"{math.ceil(ratio * 100) / 100:.2f}" if ratio < 100 else f"{math.ceil(ratio)}"
    return (
        "Someone who guesses, at even odds and knowing all other rows, whether a given row was trained on is right at "
        f"most e^epsilon = {times} times as often as wrong, apart from delta."
    )


def _ledger(policy: SourcePolicy, site: str) -> str:
    return (
        f"The ledger at {site} counts the cost of each round before the round trains. It counts from its opening or "
        f"last reset. A reset needs a reason and {site}'s signature; what was spent before it comes on top. A round "
        "that would cost more than is left is not trained (exit code 11)."
        + (
            f" A run that {site} joins reserves its rounds for {counted(days, 'day')}: others cannot spend them."
            if (days := policy.dp.reserve_days)
            else ""
        )
    )


def _without_noise(policy: SourcePolicy, site: str) -> str:
    line = (
        f"{site} may train without noise (dp.required = false) if its own settings say so. The ledger does not count "
        "such rounds, and after one of them no epsilon bounds what has left about these rows. "
    )
    if policy.visibility is Visibility.INDIVIDUAL:
        return (
            line + "Nothing then protects them from the aggregator: an update and every later model can reveal any "
            "amount about a row."
        )
    return line + (
        "Sums still hide which source a contribution comes from. They do not hide what the contributions reveal "
        "together: whether a "
        "row was trained on, or its values, may show in a sum and in every later model, and nothing bounds it."
    )


def _not_covered(policy: SourcePolicy, site: str) -> tuple[str, ...]:
    return (
        f"Not covered: {site}'s number of rows, which counts as public, and with it the steps and the sampling rate "
        f"that follow from it; also when and for how long {site} trains.",
        "Not covered: more than one row at a time. Several rows of one patient are not one unit: for two rows "
        f"together, epsilon is {2 * policy.dp.target_epsilon:g} at a larger delta, and so on. A row that is also in "
        "another data set, or at another site, is counted there separately.",
    )


def _measured(policy: SourcePolicy) -> str:
    """Return what attacks found in the smallest sum that the policy permits, colluders not counted."""
    return members_found(1 if policy.visibility is Visibility.INDIVIDUAL else policy.min_others + 1)


def in_brief(policy: SourcePolicy, sources: int | None = None, target: str = "") -> tuple[tuple[str, str], ...]:
    """Return the main points of :func:`explain`: a word, and a phrase that fits into a line of 80 characters with it.

    Args:
        policy: and ``sources`` as for :func:`explain`.
        target: id of the target, if known.
    """
    level, dp, release, rules = policy.visibility, policy.dp, policy.release, policy.allowed_rules
    what = "update or second moments" if Rule.ANALYTIC in rules else "update"
    what = "second moments" if set(rules) == {Rule.ANALYTIC} else what
    numbers = "row count" if dp.required or set(rules) == {Rule.ANALYTIC} else "row count, loss, accuracy"
    most = "" if sources is None or level is Visibility.COHORT else f" of {sources}"
    if sources is not None and sources < policy.smallest_sum:
        most = f" (there are {sources})"
    over = f"of at least {policy.smallest_sum}{most} sources"
    form = {
        Visibility.SUM: f"masked: the target opens one sum a round {over}",
        Visibility.COHORT: f"masked: the target opens one sum per random cohort {over}",
        Visibility.INDIVIDUAL: "in clear: the target may see each update by itself",
    }[level]
    beside = f"at least {counted(policy.min_others, 'other source')}, "
    beside += f"not counting {policy.max_colluders} that may collude" if policy.max_colluders else "if none colludes"
    if level is Visibility.INDIVIDUAL:
        beside = "nobody, where the target asks for single updates"
    per = " per layer" if policy.norm_cap.granularity == "layer" else ""
    bound = f"epsilon at most {dp.target_epsilon:g} at delta {dp.target_delta:g}"
    runs = f"{counted(release.max_runs, 'run')} in 24 hours" if release.max_runs else "no run without consent"
    named = "all" if set(RULES_OF_SOURCES) <= set(rules) else first_of(rules, 2) or "none"
    return (
        ("leaves", f"{what}, {numbers}; no row, no file"),
        ("to", f"{f'{target}, ' if target else ''}the target; each source gets every round's model"),
        ("form", form),
        ("beside", beside),
        ("one source", f"sees how large this contribution is{per}, and could pass it on"),
        ("noise", f"required: {bound} for each row" if dp.required else f"optional ({bound}); without it, no bound"),
        ("why", shorten(policy.agreement.purpose, 68, placeholder=" …") or "no purpose is stated (agreement.purpose)"),
        ("rounds", f"at most {release.max_rounds:,} a run, {counted(release.max_attempts, 'attempt')} each; {runs}"),
        ("rules", f"{named}; {_tasks(policy)}"),
    )


def _tasks(policy: SourcePolicy) -> str:
    named = [task.partition("@")[0].rpartition(":")[2] for task in policy.allowed_tasks]
    return f"tasks: {first_of(named, 2)}" if named else "the task that its settings name"


@dataclass(frozen=True, slots=True)
class Explanation:
    """The meaning of a policy; each entry holds a sentence or a few.

    Attributes:
        summary: the numbers in one line.
        learns: what the aggregator can learn of the site, with every peer following the protocol or not.
        does_not_learn: what it cannot, as long as ``assumes`` holds.
        budget: what noise bounds, what counts it, what it leaves out, and what holds without it.
        target_pays: what the sources learn of the target.
        keeps: what the site keeps of the model at the end of a run.
        agreed: who agreed to what, and which of it is checked.
        assumes: what the claims rest on.
    """

    summary: str
    learns: tuple[str, ...]
    does_not_learn: tuple[str, ...]
    budget: tuple[str, ...]
    target_pays: tuple[str, ...]
    keeps: tuple[str, ...]
    agreed: tuple[str, ...]
    assumes: tuple[str, ...]

    def parts(self) -> tuple[tuple[str, tuple[str, ...]], ...]:
        """Return the sentences, each list with its heading."""
        return (
            ("The aggregator can learn", self.learns),
            ("It cannot learn", self.does_not_learn),
            ("What noise bounds", self.budget),
            ("What the sources learn of the target", self.target_pays),
            ("What the site keeps of the model", self.keeps),
            ("What was agreed", self.agreed),
            ("What this rests on", self.assumes),
        )

    def text(self) -> str:
        """Return all of it as text for people."""
        parts = ["\n".join([f"{heading}:", *(f"  - {line}" for line in lines)]) for heading, lines in self.parts()]
        return "\n\n".join([self.summary, *parts])


def explain(policy: SourcePolicy, site: str, sources: int | None = None) -> Explanation:
    """Explain what ``policy`` lets the aggregator learn of ``site``.

    Args:
        policy: of the site.
        site: the site's id.
        sources: number of sources of the federation that have not left it, N; None where it is not known.
    """
    facts = _Facts(policy, site, "the federation's" if sources is None else f"the federation's N = {sources}")
    return Explanation(
        summary=_capitalised(_summary(facts, sources)),
        learns=tuple(map(_capitalised, (*_seen(facts), *_always_seen(facts)))),
        does_not_learn=tuple(map(_capitalised, _hidden(facts))),
        budget=tuple(map(_capitalised, explain_budget(policy, site))),
        target_pays=tuple(map(_capitalised, _target_pays(facts))),
        keeps=tuple(map(_capitalised, _model_left(facts))),
        agreed=tuple(map(_capitalised, _agreed(facts))),
        assumes=tuple(map(_capitalised, _assumptions(facts))),
    )


def _capitalised(text: str) -> str:
    """Return sentences with capitals where they begin with the words for a site without a name."""
    return re.sub(r"(^|\. )this site\b", r"\1This site", text)


@dataclass(frozen=True, slots=True)
class _Facts:
    policy: SourcePolicy
    site: str
    of_all: str

    @property
    def others(self) -> str:
        """Return a phrase for the other sources that hide this site."""
        trusted = f" of its {len(self.policy.trusted_peers)} trusted peers" if self.policy.trusted_peers else ""
        colluding = f", not counting {self.policy.max_colluders} that may collude with the aggregator"
        return (
            f"at least {self.policy.min_others} other sources{trusted}{colluding if self.policy.max_colluders else ''}"
        )


def _summary(facts: _Facts, sources: int | None) -> str:
    policy = facts.policy
    line = f"{facts.site} permits at most visibility {policy.max_visibility}, with min-others = {policy.min_others}"
    line += (
        f", max-colluders = {policy.max_colluders}, kappa = {policy.norm_cap.kappa:g} per {policy.norm_cap.granularity}"
    )
    line += f"; {summarise_budget(policy)}"
    if sources is None or policy.visibility is Visibility.INDIVIDUAL:
        return f"{line}."
    spare = sources - policy.smallest_sum
    if spare < 0:  # after sites have left
        return f"{line}. A sum opens over at least {policy.smallest_sum} sources, and N = {sources}: none opens."
    lost = f"up to {spare} of them may be lost in a round" if spare else "all of them must answer in every round"
    return f"{line}. A sum opens over at least {policy.smallest_sum} of N = {sources} sources: {lost}."


def _seen(facts: _Facts) -> tuple[str, ...]:
    """Describe what each permitted level shows, the most open one first; a header may always ask for less."""
    policy, site = facts.policy, facts.site
    lines = []
    # Loss and accuracy are computed from rows without noise, so one source with noise keeps everybody's at home.
    sums = "row counts"
    if not policy.dp.required and set(policy.allowed_rules) != {Rule.ANALYTIC}:
        sums += ", of losses and accuracies if no source in the round trains with noise"
    if SELECTION in policy.allowed_rules:
        sums += ", and of estimated errors of the rules"
    sum_line = (
        f"At visibility sum: one weighted sum per round over at least {policy.smallest_sum} of {facts.of_all} sources, "
        f"in which {site}'s contribution is one term beside those of {facts.others}; with it the sums of {sums}."
    )
    if policy.visibility is Visibility.INDIVIDUAL:
        names = {"samples": "its number of training rows", "loss": "its mean loss", "accuracy": "its accuracy"}
        beside = ", ".join(names[name] for name in names if name in policy.metadata.may_leave)
        clear = f"At visibility individual: {site}'s own update of every round, in clear, with {beside}. "
        clear += "A rule that does not align updates also has it tell how its number of steps relates to the target's. "
        if policy.dp.required:
            clear += "Only noise bounds what it reveals about one row (see below). "
        else:
            clear += "An update without noise can reveal much about the rows behind it. "
        if set(policy.metadata.may_leave) - {"samples"}:
            clear += "Mean loss and accuracy leave only in rounds in which no source trains with noise. "
        lines.append(clear + "min-others, max-colluders and norm-cap.kappa protect nothing at this visibility.")
    if policy.visibility <= Visibility.COHORT:
        steps = ""
        if "samples" in policy.metadata.may_leave:
            steps = (
                " A rule that does not align updates also has it tell how its members' numbers of steps relate to the "
                "target's."
            )
        lines.append(
            f"At visibility cohort: one such sum per round over a cohort of at least {policy.smallest_sum} sources, "
            f"drawn at random again for every round, beside {facts.others}. Many rounds give many different sums that "
            f"contain {site}, and together they reveal more of it than one sum does. No norm cap holds for cohorts: "
            f"if its contribution is much larger than the others', such a sum shows it nearly alone.{steps}"
        )
    return (*lines, sum_line, _norm_report(facts))


_LENGTHS_WITHOUT_DIRECTION = ("source_only", "fedavg", "fedda", "analytic")


def _norm_report(facts: _Facts) -> str:
    """Describe what the other sources of a sum see for the caps, and what a colluding one could pass on."""
    site, policy = facts.site, facts.policy
    condition = "If the header sets a norm cap" if policy.norm_cap.kappa == 0 else "At visibility sum"
    count = "one number per layer" if policy.norm_cap.granularity == "layer" else "one number, or one per layer"
    line = (
        f"{condition}, norm reports tell the aggregator nothing by themselves. But the other sources in the sum see "
        f"how large {site}'s contribution is: {count} in each round (the norm, weighted by rows, rounded down to a "
        "step of 2^(1/4), or of 2^(1/2) in a layer of fewer than 256 parameters). A source that colludes can pass it "
        "on to the aggregator."
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
            f" With the rules {', '.join(choosing)}, these numbers depend on what the target publishes beside the "
            f"model: with a made-up vector, they show how far {site}'s update points in a direction of the target's "
            "choice."
        )
    return line


def _always_seen(facts: _Facts) -> tuple[str, ...]:
    release, site = facts.policy.release, facts.site
    if release.max_runs == 0:
        runs = f"No run begins without the consent of {site}'s operator."
    else:
        begin = "one run begins" if release.max_runs == 1 else f"{release.max_runs} runs begin"
        runs = f"In 24 hours, at most {begin}; any more need the consent of {site}'s operator."
    return (
        f"Over a run: up to {counted(release.max_rounds, 'round')} of this. Each round has at most "
        f"{counted(release.max_attempts, 'attempt')} and one release. {runs} {site} leaves after "
        f"{release.max_unfinished} rounds without a result; each round with a result lowers that count by one. Sums "
        "over different sets of sources can be subtracted from each other: the difference is due to few sources, or "
        f"to {site} alone if only it was absent from one of them.",
        *_held_back(facts),
        _models(facts),
        *_attention(facts),
        *_pull(facts),
        *_moments(facts),
        f"That {site} takes part, when, and how long it takes; the digest of its model's architecture, its software "
        "version and its max-visibility; and if it refuses, the key that forbids the request.",
    )


def _held_back(facts: _Facts) -> tuple[str, ...]:
    least, site = facts.policy.release.min_rows, facts.site
    if least == 1:
        return ()
    return (
        f"If {site} trains without noise: the change of a parameter only if at least {least} of its rows moved it in "
        "the round. Rows that hardly moved it count as well.",
    )


def _attending(policy: SourcePolicy) -> tuple[str, ...]:
    attending = (rule for rule in Rule if rule.attends and not (policy.dp.required and rule.releases_features))
    return tuple(rule.value for rule in attending if rule.value in policy.allowed_rules)


def _attention(facts: _Facts) -> tuple[str, ...]:
    """Describe the influence that a target without labels has through what it publishes, if the policy allows it."""
    site, policy = facts.site, facts.policy
    attending = _attending(policy)
    if not attending or policy.visibility is not Visibility.SUM:
        return ()
    bound = policy.limits.attention_bound_max
    return (
        f"With {', '.join(attending)}, the weight of {site}'s update depends on a gradient that the target publishes: "
        f"it is at most {math.exp(2 * bound):.3g} times that of another source with as many rows (attention-bound-max "
        f"= {bound:g}). The sum also contains the sum of all sources' shares, one number.",
    )


def _pull(facts: _Facts) -> tuple[str, ...]:
    """Describe what a target learns by the features that it sends, if the policy allows it."""
    site, releasing = facts.site, rules_that_send_features(facts.policy)
    if not releasing:
        return ()
    return (
        f"With {', '.join(releasing)}, {site} compares features of its rows with features that the target sends. It "
        f"answers with its update and a pull: for each row that the target sent, the direction in which {site}'s own "
        f"features lie. The target chooses what it sends. The features of {site}'s rows do not leave.",
    )


def _moments(facts: _Facts) -> tuple[str, ...]:
    """Describe what leaves under the analytic rule, if the policy allows it, and what stays."""
    site, policy, bounds = facts.site, facts.policy, facts.policy.moments
    if Rule.ANALYTIC not in policy.allowed_rules:
        return ()
    lines = [
        f"With {Rule.ANALYTIC}, once in a run and in place of an update: the second moments of {site}'s rows, that is "
        "how often features occur together and with each label. In a sum they are those of all sources."
    ]
    if policy.dp.required:
        return (f"{lines[0]} They leave with noise: the ledger is charged for one release of all rows.",)
    lines[0] += (
        " Without noise they show how many rows of each class there are, and of a class or a category that one row "
        "has, that row. Someone who knows a row can test whether it is among them: that hardly ever fails if a sum has "
        "fewer rows than a row has numbers, and works less well the more rows it has."
    )
    asked = [f"{bounds.min_rows:g} times as many rows as a row has numbers"] if bounds.min_rows else []
    if bounds.min_rows_per_class > 1:
        asked.append(f"{bounds.min_rows_per_class} rows of each of its classes")
    if asked:
        lines.append(
            f"Without noise, {site} takes part in {Rule.ANALYTIC} only if it has at least {' and '.join(asked)}; a "
            "refusal tells which of these it lacks."
        )
    if bounds.min_rows_per_category > 1:
        lines.append(
            f"Where fewer than {bounds.min_rows_per_category} of its rows have another value of a feature than the "
            "usual one, they count with the usual one."
        )
    return tuple(lines)


def _models(facts: _Facts) -> str:
    """Describe which models a header may bring, and how fast they may change."""
    site, policy = facts.site, facts.policy
    listed = len(policy.model.digests)
    first = f"one of the {listed} first models that the policy lists" if listed else "the task's own first model"
    return (
        f"What an update reveals depends on the model that it is trained from. That is {first}, then the model of the "
        "last finished round and no other. A finished round moves no group of layers further than "
        f"{policy.limits.model_step:g} times as far as {site}'s own training has moved it (model-step). A target can "
        "therefore still lead the model to one that reveals more of the rows, but only over several finished rounds."
    )


def _hidden(facts: _Facts) -> tuple[str, ...]:
    policy, site = facts.policy, facts.site
    without = "that is bounded only if it trains with noise (see below)."
    bounds = "what they reveal about one row is bounded (see below)." if policy.dp.required else without
    always = (
        f"Rows, files or anything else of {site} that is not named above: no message can carry it. This does not mean "
        f"that an update or a sum reveals nothing about rows: {bounds}",
        "Anything under a rule, a task, a model or a number that this policy does not permit: the request is refused "
        "before training, and only the key that forbids it leaves.",
    )
    if policy.visibility is Visibility.INDIVIDUAL:
        return (f"If it asks for visibility individual, nothing of {site}'s update stays hidden from it.", *always)
    helped = (
        f", and whichever {policy.max_colluders} of the other sources collude with it" if policy.max_colluders else ""
    )
    return (
        f"{site}'s own update, row count, loss or accuracy of a round: each leaves only as one term of a sum beside "
        f"{facts.others}. This holds whatever the aggregator does{helped}, except for what the sums and lengths listed "
        "above reveal by themselves.",
        _norm_cap_claim(facts),
        *always,
    )


def _norm_cap_claim(facts: _Facts) -> str:
    bounds, site = facts.policy.norm_cap, facts.site
    if bounds.kappa == 0:
        return (
            f"This policy does not prevent sums in which {site}'s contribution is much larger than all others: with "
            "kappa = 0, such a sum may show it nearly alone."
        )
    place = (
        "in every layer" if bounds.granularity == "layer" else "over the model as a whole, though not in every layer,"
    )
    claim = (
        f"At visibility sum, a sum of which {site} makes up most: {place} the others that count together have at least "
        f"{bounds.kappa:g} times the squared norm of its contribution. This bounds lengths, not directions: a sum "
        "shows the direction that its contributions share, and opposed contributions cancel."
    )
    projected = any(rule.projects and rule.value in facts.policy.allowed_rules for rule in Rule)
    if not (bounds.unfiltered_projection and projected):
        return claim
    return claim + (
        " This site permits FedGP without its filter (unfiltered-projection). The target's update then decides the "
        "sign of each contribution as well. A target can craft it so that similar contributions of the others cancel "
        f"each other, and the sum is nearly {facts.site}'s contribution alone although all norms are as required."
    )


def _target_pays(facts: _Facts) -> tuple[str, ...]:
    published, attending = rules_that_publish_the_target(facts.policy), _attending(facts.policy)
    releasing = rules_that_send_features(facts.policy)
    if not published and not attending and not releasing:
        return ("Nothing beside the model: under the allowed rules the target publishes no update of its own.",)
    unlabelled = []
    if attending:
        unlabelled.append(
            f"With {', '.join(attending)} at visibility sum, every source sees the gradient of the gap, which depends "
            "on the features of the target's rows. Nothing bounds what it reveals about one of them."
        )
    if releasing:
        unlabelled.append(
            f"With {', '.join(releasing)}, every source sees features of some of the target's rows in each round, at "
            "every visibility, and can try to reconstruct the rows from them. The target's own settings must allow it."
        )
    if not published:
        return tuple(unlabelled)
    return (
        f"With the rules {', '.join(published)} at visibility sum, every source sees the target's own update g_T of "
        "the round, since the rule runs at the sources. The published change of the model partly shows it anyway (in "
        "this project's studies, the median cosine of the two was between 0.3 and 1.0, by task and rule; the target's "
        "report has that of each round). No source's policy protects the target's rows; noise in the target's own "
        "training (its training.dp) bounds what g_T reveals about one of them.",
        "At visibility cohort and individual, g_T stays at the target.",
        *unlabelled,
    )


def _model_left(facts: _Facts) -> tuple[str, ...]:
    site, keep = facts.site, facts.policy.model.keep
    known = f"{site} knows every model that it trains from, whatever it keeps afterwards."
    if keep == "final":
        return (f'{site} takes part only in runs that let it keep the final model (model.keep = "final").', known)
    if keep == "none":
        return (f'{site} takes part only in runs after which it keeps no model (model.keep = "none").', known)
    return (f'Each run says whether {site} keeps the final model or no model (model.keep = "any").', known)


def _agreed(facts: _Facts) -> tuple[str, ...]:
    """Say what the policy states for people, and which part of it a process checks."""
    site, policy, agreed = facts.site, facts.policy, facts.policy.agreement
    stated = {
        "purpose": agreed.purpose,
        "legal basis": agreed.legal_basis,
        "contract": agreed.contract,
        "authority": agreed.authority,
        "most rows of one person": agreed.rows_per_person,
        "days that logs are kept": agreed.keep_logs_days,
        "days that models are kept": agreed.keep_models_days,
        "template": agreed.template,
    }
    said = "; ".join(f"{name}: {value}" for name, value in stated.items() if value)
    missing = ", ".join(name for name, value in stated.items() if not value)
    lines = [
        f"Stated, and checked by no process: {said or 'nothing'}." + (f" Not stated: {missing}." if missing else "")
    ]
    checked = []
    if agreed.recipient:
        checked.append(f"the roster's target must be of {agreed.recipient}")
    if agreed.columns:
        checked.append(f"a table's task may name no column but {', '.join(agreed.columns)}")
    if pinned := [task.partition("@")[0] for task in policy.allowed_tasks if "@" in task]:
        checked.append(f"options and code of {', '.join(pinned)} must be those of the digest that the policy lists")
    if agreed.expires:
        checked.append(f"no round begins after {agreed.expires} (UTC)")
    if policy.dp.expires:
        checked.append(f"no round with noise begins after {policy.dp.expires} (UTC)")
    if agreed.signatures_required:
        checked.append(
            f"{counted(agreed.signatures_required, 'person', 'people')} must have signed by name; the names are what "
            f"{site} says"
        )
    lines.append(
        f"Checked before {site} takes part: {'; '.join(checked)}." if checked else f"{site} checks none of it."
    )
    return tuple(lines)


def _assumptions(facts: _Facts) -> tuple[str, ...]:
    policy, site = facts.policy, facts.site
    common = (
        f"Nobody else controls {site}'s machine or has its signing key, and its process runs with the policy that the "
        "site signed.",
        f"For the privacy budget: {ASSUMPTIONS}; the random numbers of {site}'s machine cannot be guessed.",
    )
    if policy.visibility is Visibility.INDIVIDUAL:
        return (
            *common,
            "TLS 1.3 protects messages on the network. Nothing is assumed of the aggregator, which may see each update "
            "of this site.",
        )
    helpers = (
        f"with at most max_colluders = {policy.max_colluders} of the other sources"
        if policy.max_colluders
        else "but with no other source"
    )
    return (
        f"The aggregator may deviate from the protocol in any way, {helpers} on its side. Each additional source that "
        f"colludes takes one off min-others = {policy.min_others}.",
        "The roster lists real, separate sites whose keys are their own.",
        (
            "Of X25519 and ML-KEM-768, one at least stays unbroken for as long as anyone keeps the messages; AES-256, "
            "HKDF-SHA256 and Ed25519 are sound."
            if "x25519" not in policy.key_agreements
            else "X25519, AES-256, HKDF-SHA256 and Ed25519 are sound, X25519 for as long as anyone keeps the messages."
        ),
        *common,
    )
