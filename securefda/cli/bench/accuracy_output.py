"""What ``securefda bench accuracy`` prints, and the exit code it ends with."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from securefda.cli.bench.accuracy import TABLE_FILE, Accuracy, means
from securefda.cli.bench.bars import compare_levels
from securefda.cli.bench.plan import level_keys
from securefda.cli.bench.suite_folder import read_folder
from securefda.cli.output import Format, aligned, print_error, print_result
from securefda.errors import ConfigError, SecureFdaError

COMPARED_POINTS = 1.0
"""How far the means of two levels may be apart."""


class RunsFailed(SecureFdaError):
    """Some runs of a suite gave nothing."""


class BarsMissed(SecureFdaError):
    """A suite's figures are not what they have to be."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """Two levels of a suite: rule -> points above the other one, and a line for each that is too far off."""

    other: Path
    differences: Sequence[tuple[str, float]]
    misses: Sequence[str]


def compared(done: Accuracy, other: Path) -> Comparison:
    """Compare what was measured with another folder of the same suite and, but for the level, of the same settings.

    Raises:
        ConfigError: the other folder holds no suite, another one, or one with other settings.
    """
    settings, results = read_folder(other)
    own, _ = read_folder(done.out)
    if settings["suite"] != own["suite"]:
        raise ConfigError("--compare", f"{other} holds suite {settings['suite']}", hint=f"not {own['suite']}")
    _require_comparable(own, settings, other)
    misses, differences = compare_levels(done.results, results, COMPARED_POINTS)
    return Comparison(other, differences, misses)


def _require_comparable(own: Mapping[str, Any], settings: Mapping[str, Any], other: Path) -> None:
    for data in own["federations"]:
        of_level = {*level_keys(data, own["level"]), *level_keys(data, settings["level"])}
        theirs = settings["federations"].get(data, {})
        for key, value in own["federations"][data].items():
            if theirs and key not in of_level and theirs.get(key) != value:
                why = f"{other} was measured with {json.dumps(theirs.get(key))}, this with {json.dumps(value)}"
                raise ConfigError(key, why, hint="levels are compared with all else alike")


def print_accuracy(output: Format, done: Accuracy, comparison: Comparison | None, *, check: bool) -> int:
    """Print tables and requirements; return 1 where a run failed or, with ``check``, a requirement does not hold."""
    misses = [*done.misses, *(comparison.misses if comparison else ())]
    data: dict[str, Any] = {
        "out": str(done.out),
        "suite": done.request.suite,
        "level": done.request.level,
        "seeds": done.results.seeds,
        "means": means(done.results),
        "misses": misses,
        "failed": {str(key): why for key, why in done.failed.items()},
        "differences": dict(comparison.differences) if comparison else {},
    }
    error = _error(done, misses if check else [])
    if output is Format.JSON and error is not None:
        return print_error(error, as_json=True, data=data)
    print_result(output, data, _text(done, comparison, misses))
    return 0 if error is None else print_error(error, as_json=False)


def _error(done: Accuracy, misses: Sequence[str]) -> SecureFdaError | None:
    if done.failed:
        key, why = next(iter(done.failed.items()))
        count = len(done.failed)
        what = f"{count} {'run' if count == 1 else 'runs'} failed, first {key}: {why}"
        return RunsFailed(what, hint="the same command tries again what failed, and nothing else")
    if misses:
        count = len(misses)
        return BarsMissed(f"{count} {'requirement does' if count == 1 else 'requirements do'} not hold")
    return None


def _text(done: Accuracy, comparison: Comparison | None, misses: Sequence[str]) -> str:
    parts = [(done.out / TABLE_FILE).read_text().rstrip("\n")]
    if comparison is not None:
        rows = [["rule", f"points above {comparison.other}"]]
        rows += [[rule, f"{difference:+.2f}"] for rule, difference in comparison.differences]
        parts.append(aligned(rows))
    if done.request.definition.bars or comparison is not None:
        parts.append("\n".join(misses) or "Every requirement holds.")
    return "\n\n".join([*parts, f"in {done.out}"])
