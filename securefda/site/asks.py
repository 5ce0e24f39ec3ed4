"""Describe in words what a target's settings ask of the sources, and what leaves the target.

A target has no policy: it asks, and each source's policy decides.
"""

from __future__ import annotations

from dataclasses import dataclass

from securefda.rules.strategy import Rule
from securefda.site.config import AggregatorConfig, TargetTrainingSection, strategy_of
from securefda.text import counted

_SEEN = {
    "sum": "one sum of the sources' updates per round",
    "cohort": "one sum per cohort of a few sources, drawn at random in every round, or less if a policy permits less",
    "individual": "each source's own update if its policy permits that, else a sum",
}

_MOMENTS = {
    "sum": "one sum of second moments of the sources' rows",
    "cohort": "one sum of second moments per cohort of a few sources, or less if a policy permits less",
    "individual": "second moments of each source's own rows if its policy permits that, else a sum",
}

_KEPT = {
    "final": "when the run is complete, each keeps the final model",
    "none": "when the run is complete, each deletes its copies of the model",
}


@dataclass(frozen=True, slots=True)
class TargetDescription:
    """The texts that describe a target: what it asks for and what leaves it."""

    summary: str
    asks: tuple[str, ...]
    sends: tuple[str, ...]

    def text(self) -> str:
        """Return all of it, as paragraphs."""
        parts = [self.summary, "It asks the sources for:", *(f"  - {line}" for line in self.asks), ""]
        return "\n".join([*parts, "What leaves it:", *(f"  - {line}" for line in self.sends)])


def summarise_requests(config: AggregatorConfig) -> str:
    """Return one line that says what the settings ask for."""
    privacy = config.privacy
    sums = f"min-others {privacy.min_others}, max-colluders {privacy.max_colluders}"
    labels = "" if config.training.labels == "given" else f", target labels {config.training.labels}"
    return f"this one asks for {privacy.visibility}, {sums}, rule {config.strategy.rule}{labels}"


def describe_target(config: AggregatorConfig, site: str, sources: tuple[str, ...]) -> TargetDescription:
    """Describe what a target asks for and sends.

    Args:
        config: the target's settings.
        site: the target's id.
        sources: ids of the sources of its roster.
    """
    privacy, strategy, noise = config.privacy, config.strategy, config.training.dp.noise_multiplier
    rule = Rule(strategy.rule)
    summary = (
        f"{site} is the target: it has no policy, and no process reads the policy.toml in its kit. What it may see is "
        f"decided by the policies of the sources: {', '.join(sources)}. Its own settings say the following."
    )
    colluders = f", not counting {privacy.max_colluders} that may collude with it" if privacy.max_colluders else ""
    caps = f"norm caps with kappa {privacy.norm_cap_kappa:g} per {privacy.norm_cap_granularity}"
    asks = (
        f"visibility {privacy.visibility}: {(_MOMENTS if rule.adds_moments else _SEEN)[privacy.visibility]}.",
        f"sums in which each source is beside at least {privacy.min_others} others{colluders}; "
        f"{caps if privacy.norm_cap_kappa else 'no norm caps'}.",
        *_neighbours(config),
        f"{counted(strategy.rounds, 'round')} of {rule.value}"
        f"{f', the first {warm_up} of them source_only' if (warm_up := strategy_of(strategy).warm_up) else ''}.",
        f'model.sources-keep "{config.model.sources_keep}": {_KEPT[config.model.sources_keep]}.',
    )
    how = f"with noise (multiplier {noise:g}), counted by a ledger" if noise else "without noise"
    if config.training.labels == "pseudo":
        how += ", on labels from the common model, which the sources influence"
    short = config.session.down_link
    common = "to every source, the common model in each round" + ("" if short == "float32" else f", rounded to {short}")
    model = f"{common}: {site} trained its part of it {how}."
    if rule.adds_moments:
        model = f"{common}; {site} fits its last layer to its own rows and to what the sources add."
    elif rule.is_mean_of_sources:
        model = f"{common}; {site}'s rows have no influence on it."
    if config.training.labels == "none":
        part = "decide how much each source weighs" if rule.attends else "have no influence on it"
        if strategy.align_moments != "none":
            part = "tell by their mean where the sources' rows are moved, so that it depends on this mean"
        if rule.releases_features:
            part = "decide in which direction features move"
        model = (
            f"{common}; {site}'s rows {part}, and their labels are not used. "
            f"No header says so, but the rule {rule.value} needs none."
        )
    own = (
        f"to the sources at visibility sum, in rounds of {rule.value}, also {site}'s own update and statistics, since "
        f"the sources evaluate this rule. The update is trained {how}."
    )
    if rule.attends:
        own = (
            f"to the sources at visibility sum, in rounds of {rule.value}, the gradient of the gap: the direction in "
            f"which the features of at most {strategy.attention_rows} of {site}'s rows fall into clusters less well. "
            "The sources evaluate this rule. Nothing bounds what the gradient reveals about a row."
        )
    features = (
        f"to every source, in rounds of {rule.value}, features of {strategy.feature_rows} of {site}'s rows, drawn anew "
        f"in each round ({_protected(config.training)}). Anyone who has the features can try to reconstruct the rows."
    )
    inside = rule.attends or rule is Rule.AUTO or rule.value.startswith(("fedda", "fedgp"))
    released = (features,) if rule.releases_features else ()
    adapted = ("not the model that it adapts to its rows after the run.",) if config.training.adapt != "none" else ()
    sends = (model, *((own,) if inside else ()), *released, "no row and no file.", *adapted)
    return TargetDescription(summary, asks, sends)


def _neighbours(config: AggregatorConfig) -> tuple[str, ...]:
    if config.session.graph == "complete":
        return ()
    share, colluders = config.session.dropouts, config.privacy.max_colluders
    return (
        f'session.graph "k-regular": each source agrees on masks and exchanges shares of keys with a few random '
        f"neighbours, enough for {counted(colluders, 'colluding source')} and for {share:.0%} that drop out. "
        "The sum is over all.",
    )


def _protected(training: TargetTrainingSection) -> str:
    if not training.feature_clip:
        return "as they are"
    noise = f"with noise of {training.feature_noise:g} times that" if training.feature_noise else "without noise"
    return f"each row scaled to a length of at most {training.feature_clip:g}, {noise}"
