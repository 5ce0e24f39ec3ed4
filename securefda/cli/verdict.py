"""In words: what a run protected, from whom, and what it did not."""

from __future__ import annotations

from collections.abc import Mapping

_WITHOUT_SOURCES = ("target_only", "oracle")


def protected(visibility: Mapping[str, str], rule: str) -> str:
    """One sentence on what the aggregator could not see.

    Args:
        visibility: source id -> level that the run was served at.
        rule: the rule of the run's strategy.
    """
    masked = [site for site, level in visibility.items() if level != "individual"]
    if rule in _WITHOUT_SOURCES:
        return f"Protected: under {rule} the sources contribute nothing, so neither rows nor updates left any of them."
    if not masked:
        return (
            "Protected: training data never left its site; but each source's update went to the aggregator in clear "
            "inside mutual TLS, which keeps out only others on the network."
        )
    return (
        f"Protected: training data never left its site, and the update of {_who(masked, visibility)} left it only "
        f"under masks, so that the aggregator, which runs at the target, could open {_sums(visibility)} per round and "
        "no single update; sources that collude with it, as many as the policies reckon with (n-c), can only take "
        "their own terms out of a sum."
    )


def unprotected(visibility: Mapping[str, str], rule: str, *, filtered: bool = False) -> str:
    """One sentence on what stays visible, and to whom, under this rule; ``filtered`` is ``strategy.filter``."""
    if rule in _WITHOUT_SOURCES:
        return "Not protected: no noise was added, so the final model may reveal something of the target's rows."
    clear = [site for site, level in visibility.items() if level == "individual"]
    summed = [site for site, level in visibility.items() if level == "sum"]
    parts = []
    if clear:
        parts.append(f"the aggregator saw every single update of {_who(clear, visibility)}")
    if "cohort" in visibility.values():
        parts.append(
            "cohorts are drawn anew in every round, so the sums of many rounds together tell more of one source than "
            "one sum does"
        )
    if summed and rule.startswith(("fedda", "fedgp")):
        parts.append("the sources saw the target's own update, from which they evaluate the rule")
    if filtered and summed and rule.startswith("fedgp"):
        parts.append("a layer in which one source alone points the target's way shows that source's part in the sum")
    parts.append("no noise was added, so sums and the final model may reveal something of the rows behind them")
    return f"Not protected: {'; '.join(parts)}."


def _sums(visibility: Mapping[str, str]) -> str:
    return "one weighted sum per cohort" if "cohort" in visibility.values() else "one weighted sum"


def _who(sites: list[str], visibility: Mapping[str, str]) -> str:
    return "every source" if len(sites) == len(visibility) else ", ".join(sites)
