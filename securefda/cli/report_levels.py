"""The part of a report that is about levels: what was seen of whom, g_T, how a rule was chosen."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import median

from securefda.rounds.records import RoundLine

_MOST_GROUPS = 24
_NAMED_SITES = 8
_NEARLY_PARALLEL = 0.9
_IN_WORDS = {
    "individual": "its own update, in clear",
    "cohort": "the sum of their updates",
    "sum": "one weighted sum, the rule already applied",
}


@dataclass(frozen=True, slots=True)
class Chart:
    """A figure of the page: heading, what it shows in words, and the SVG."""

    heading: str
    caption: str
    svg: str


def level_charts(rounds: Sequence[RoundLine]) -> list[Chart]:
    """The figures for which these rounds have something to show."""
    makers = (_trained_chart, _cosine_chart, _errors_chart, _privacy_chart)
    return [chart for maker in makers if (chart := maker(rounds))]


def seen_rows(rounds: Sequence[RoundLine]) -> list[dict[str, str]]:
    """A row for each set of sources of which the aggregator saw something: what, in which rounds, over how many rows.

    Cohorts of other members are other sets; beyond two dozen sets, the last row counts the rest.
    """
    groups: dict[tuple[str, tuple[str, ...]], list[tuple[int, int]]] = {}
    for line in rounds:
        for seen in line.get("seen", []):
            groups.setdefault((seen["level"], tuple(seen["members"])), []).append((line["round"], seen["rows"]))
    rows = [
        {
            "level": level,
            "members": listed(members, _NAMED_SITES),
            "what": _IN_WORDS.get(level, ""),
            "rounds": _ranges([number for number, _ in found]),
            "rows": f"{round(median(count for _, count in found)):,}",
        }
        for (level, members), found in list(groups.items())[:_MOST_GROUPS]
    ]
    if len(groups) > _MOST_GROUPS:
        more = f"and {len(groups) - _MOST_GROUPS} other sets, listed in metrics.jsonl"
        rows.append({"level": "", "members": more, "what": "", "rounds": "", "rows": ""})
    return rows


def listed(names: Sequence[str], most: int) -> str:
    """Names with commas; of many, the first ones and how many there are in all."""
    return ", ".join(names) if len(names) <= most else f"{', '.join(names[:3])} and others, {len(names)} in all"


def cosine_sentence(rounds: Sequence[RoundLine]) -> str:
    """What the cosine of g_T and the published change of the model says; empty where no round has one."""
    values = [cosine for line in rounds if (cosine := line.get("target_cosine")) is not None]
    if not values:
        return ""
    told = any(line.get("target_update_to") for line in rounds)
    who = "Sources at sum saw g_T, and everybody" if told else "g_T itself stayed at the target; everybody"
    middle = median(values)
    seen = (
        f"{who} sees how the model changes: nearly parallel to it (median cosine {middle:.2f}), so hiding g_T would "
        "not hide what it tells of the target's rows."
        if middle >= _NEARLY_PARALLEL
        else f"{who} sees how the model changes: with a median cosine of {middle:.2f} that shows part of g_T only."
    )
    if any("target_epsilon" in line for line in rounds):
        return f"{seen} The target trained with noise, which bounds what either tells of one of its rows."
    return f"{seen} Neither carries noise, and only noise at the target would bound what they tell of its rows."


def _trained_chart(rounds: Sequence[RoundLine]) -> Chart | None:
    """Loss and accuracy at the sources, of those that the aggregator only knows as sums."""
    from securefda.cli.figures import lines_figure

    lines: dict[str, list[tuple[int, float]]] = {}
    for line in rounds:
        for figure, mean in _means(line).items():
            lines.setdefault(figure, []).append((line["round"], mean))
    if not lines:
        return None
    caption = (
        "Shown as sums: mean over the training rows of all sources under masks, summed inside the masked vector. No "
        "source's own figure reached the aggregator."
    )
    return Chart("Training at the sources", caption, lines_figure(lines, "loss, accuracy", "trained"))


def _means(line: RoundLine) -> dict[str, float]:
    """Mean loss and accuracy by rows over everyone under masks."""
    summed = [seen for seen in line.get("seen", []) if seen["level"] != "individual"]
    told = {
        "loss": [(seen["rows"], loss) for seen in summed if (loss := seen.get("loss")) is not None],
        "accuracy": [(seen["rows"], share) for seen in summed if (share := seen.get("accuracy")) is not None],
    }
    totals = {figure: sum(rows for rows, _ in values) for figure, values in told.items()}
    return {
        figure: sum(rows * value for rows, value in values) / totals[figure]
        for figure, values in told.items()
        if totals[figure]
    }


def _cosine_chart(rounds: Sequence[RoundLine]) -> Chart | None:
    from securefda.cli.figures import lines_figure

    points = [(line["round"], cosine) for line in rounds if (cosine := line.get("target_cosine")) is not None]
    if not points:
        return None
    lowest = min(value for _, value in points)
    limits = (-0.03 if lowest >= 0 else -1.03, 1.03)  # a line that is nearly 1 all along shall look like it
    figure = lines_figure({"cosine": points}, "cosine", "cosine", limits=limits)
    return Chart("g_T and the published change of the model", cosine_sentence(rounds), figure)


def _errors_chart(rounds: Sequence[RoundLine]) -> Chart | None:
    """Estimated errors per rule, of strategy auto."""
    from securefda.cli.figures import lines_figure

    lines: dict[str, list[tuple[int, float]]] = {}
    for line in rounds:
        for rule, error in line.get("delta_errors", {}).items():
            lines.setdefault(rule, []).append((line["round"], error))
    if not lines:
        return None
    used = Counter(line.get("rule", "") for line in rounds if line.get("status") == "finished")
    counts = ", ".join(f"{rule} in {count}" for rule, count in used.most_common())
    caption = f"The rule with the smallest one is that of the next round. Rounds: {counts}."
    return Chart("Estimated errors", caption, lines_figure(lines, "squared error", "errors", logarithmic=True))


def _ranges(numbers: Sequence[int]) -> str:
    """``1-4, 7`` for 1, 2, 3, 4, 7; many separate ones are only counted."""
    ordered = sorted(set(numbers))
    starts = [ordered[0], *(after for before, after in pairwise(ordered) if after != before + 1)]
    ends = [*(before for before, after in pairwise(ordered) if after != before + 1), ordered[-1]]
    if len(starts) > 4:
        return f"{len(ordered)} rounds"
    return ", ".join(f"{start}–{end}" if end > start else f"{start}" for start, end in zip(starts, ends, strict=True))


def _privacy_chart(rounds: Sequence[RoundLine]) -> Chart | None:
    """What the target's rows have cost after each round."""
    from securefda.cli.figures import lines_figure

    points = [(line["round"], line["target_epsilon"]) for line in rounds if line.get("target_epsilon") is not None]
    if not points:
        return None
    caption = (
        "Of one row of the target, added or removed, over all rounds and runs that its ledger knows. A source's own "
        "epsilon is known to that source alone: securefda budget show."
    )
    return Chart("Privacy that the target has spent", caption, lines_figure({"epsilon": points}, "epsilon", "epsilon"))
