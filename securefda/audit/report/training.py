"""What went wrong in training: sources that diverge, a loss that is not finite, or one that rises.

A source signs a refusal when its training diverges. The other figures are from the target's run folder, which is not
signed.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final

from securefda.audit.kept import read_kept
from securefda.audit.log_files import AuditError
from securefda.operations.records import REPORTED_ROUNDS, RoundLine
from securefda.protocol.messages import Refusal
from securefda.protocol.roster import Roster
from securefda.rules import Rule
from securefda.text import names
from securefda.transport.wire import WireError, decode_signed

if TYPE_CHECKING:
    from securefda.operations.run_folder import RunRecord

_DIVERGED: Final = "DIVERGED"
"""The key with which a source refuses whose own training diverges."""
_OF_SOURCES: Final = (Rule.SOURCE_ONLY, Rule.FEDAVG)
"""Rules that lower the sources' loss; under any other the model turns to the target, and their loss may well rise."""
_RISE: Final = 1.1
"""A loss that ends higher than this times its lowest is said to have risen."""


def signed_faults(folders: Iterable[Path], roster: Roster) -> list[str]:
    """Return which sources signed a refusal since their training diverged, by the messages beside these logs."""
    found = set()
    for folder in folders:
        with suppress(AuditError):  # the verdict on the logs says what is wrong with them
            for data in read_kept(folder):
                if _DIVERGED.encode() in data and (site := _who_diverged(data, roster)):
                    found.add(f"{site} signed a refusal that says that its training diverges ({_DIVERGED}).")
    return sorted(found)


def _who_diverged(data: bytes, roster: Roster) -> str:
    try:
        message = decode_signed(data)
    except WireError:
        return ""
    is_refusal = isinstance(message.body, Refusal) and message.body.key == _DIVERGED
    if not is_refusal or message.sender >= len(roster.entries):
        return ""
    entry = roster.by_index(message.sender)
    return entry.site_id if message.verify(entry.signing_key) else ""


def training_faults(record: RunRecord | None) -> list[str]:
    """Return what went wrong in training, a sentence each; nothing without a run folder.

    Raises KeyError, TypeError or ValueError if figures have another form than a run writes.
    """
    if record is None:
        return []
    return [*_diverged(record.summary or {}, record.rounds), *_risen("target's loss", _target_losses(record.rounds)),
            *_risen("sources' mean training loss", _source_losses(record.rounds))]  # fmt: skip


def _diverged(summary: Mapping[str, object], rounds: Sequence[RoundLine]) -> Iterator[str]:
    told: dict[str, list[int]] = {}
    for line in rounds:
        for site, key in line.get("refused", {}).items():
            if key == _DIVERGED:
                told.setdefault(site, []).append(line["round"])
    for site, numbers in sorted(told.items()):
        yield f"{site} said in round {names([*map(str, numbers)])} that its training diverged."
    if lost := [line["round"] for line in rounds if "loss" in line and line["loss"] is None]:
        yield f"The target's loss was not finite in round {names([*map(str, lost)])}."
    error = summary.get("error")
    if isinstance(error, Mapping) and error.get("code") == "TrainingDiverged":
        yield f"The run ended since training diverged: {error.get('message')}"


def _target_losses(rounds: Sequence[RoundLine]) -> list[tuple[int, float]]:
    return [(line["round"], line["loss"]) for line in rounds if line.get("loss") is not None]


def _source_losses(rounds: Sequence[RoundLine]) -> list[tuple[int, float]]:
    """Round and mean over the rows of all sums and updates that say a loss; none with noise."""
    losses = []
    for line in (line for line in rounds if line.get("rule") in _OF_SOURCES):
        told = [(seen["rows"], seen["loss"]) for seen in line.get("seen", ()) if seen.get("loss") is not None]
        if rows := sum(count for count, _ in told):
            losses.append((line["round"], sum(count * loss for count, loss in told if loss is not None) / rows))
    return losses


def _risen(what: str, losses: Sequence[tuple[int, float]]) -> Iterator[str]:
    """Say so if the mean of the last losses is above the lowest mean of as many before: one round alone is noisy."""
    width = min(REPORTED_ROUNDS, len(losses) // 2)
    if width < 1:
        return
    means = [
        (losses[end - 1][0], sum(loss for _, loss in losses[end - width : end]) / width)
        for end in range(width, len(losses) + 1)
    ]
    last, lowest = means[-1], min(means, key=lambda mean: mean[1])
    if last[1] > _RISE * lowest[1]:
        over = f", means of {width} rounds" if width > 1 else ""
        yield f"The {what} rose from {lowest[1]:.3g} in round {lowest[0]} to {last[1]:.3g} in round {last[0]}{over}."
