"""``securefda config``: what a key means, and which settings a process would really have."""

from __future__ import annotations

import os
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from securefda.cli.options import OutputFormat, Overrides, file_or_sample
from securefda.cli.output import Format, filled, print_result
from securefda.text import aligned

if TYPE_CHECKING:
    from securefda.site.config.effective import Effective
    from securefda.site.config.key_help import ExplainedKey

app = typer.Typer(help="Explain settings, and show which a process would have.")


@app.command("explain")
def explain(
    key: Annotated[str, typer.Argument(metavar="KEY", help="A key, such as strategy.rounds, or a table of keys.")],
    output: OutputFormat = Format.TXT,
) -> None:
    """Say what a key means, what it takes, its default, and where it can be set. A table lists its keys."""
    from securefda.site.config.key_help import explained

    keys = explained(key)
    whole = len(keys) == 1 or all(one.key.name == key for one in keys)
    text = "\n\n".join(map(_whole, keys)) if whole else _listed(keys)
    print_result(output, {"keys": [_as_json(one) for one in keys]}, text)


def _whole(one: ExplainedKey) -> str:
    """Return everything about one key."""
    table, _, name = one.dotted.rpartition(".")
    place = f"in [{table}]" if table else "above all tables"
    if one.environment:
        set_by = f"--set {one.dotted}=VALUE; else the variable {one.environment}; else the file"
    elif one.dotted == "task.options":
        set_by = "the file, or --set task.options.NAME=VALUE"
    else:
        set_by = "the file alone; sign it after an edit: securefda policy sign KIT"
    rows = [
        ("takes", _plain(one.key.takes)),
        ("default", "none: it must be set" if one.key.default is None else one.key.default),
        ("stands", f"as {name} {place} of {', '.join(one.files)}"),
        ("set by", set_by),
    ]
    meaning = filled([_plain(one.key.meaning)], "  ")
    return f"{one.dotted}\n{meaning}\n" + "\n".join(f"  {label:8} {text}" for label, text in rows)


def _listed(found: tuple[ExplainedKey, ...]) -> str:
    """Return a line for each key, with the first sentence of its meaning."""
    rows = [("key", "default", "what it means")]
    for one in found:
        rows.append((one.dotted, one.key.default or "required", _plain(one.key.meaning).partition(". ")[0].rstrip(".")))
    return f"{aligned(rows)}\n\nsecurefda config explain KEY says more of each."


def _plain(text: str) -> str:
    """Return text for a terminal, without backquotes around code."""
    return text.replace("`", "")


def _as_json(one: ExplainedKey) -> dict[str, Any]:
    shown = {"key": one.dotted, "takes": _plain(one.key.takes), "default": one.key.default}
    return shown | {"meaning": one.key.meaning, "files": list(one.files), "environment": one.environment or None}


@app.command("show")
def show(
    file: Annotated[
        Path,
        typer.Argument(
            metavar="FILE|KIT",
            help="A federation's file or the name of a sample, a site's settings, or a startup kit.",
            parser=file_or_sample,
        ),
    ],
    changed: Annotated[bool, typer.Option("--changed", help="Leave out keys that have their default.")] = False,
    overrides: Overrides = [],
    output: OutputFormat = Format.TXT,
) -> None:
    """Show the settings that a process would have, and where each came from: flag, environment, file or default.

    Of a source's kit also its policy. Options whose names mark a secret are hidden.
    """
    from securefda.site.config.effective import effective_policy, load_effective
    from securefda.site.kit import LOCAL, POLICY_FILE, SETTINGS_FILE, require_startup

    settings = file / LOCAL / SETTINGS_FILE if file.is_dir() else file
    if file.is_dir() and not settings.exists():
        require_startup(file)
    parts = {str(settings): load_effective(settings, overrides, os.environ)}
    policy = file / LOCAL / POLICY_FILE
    if file.is_dir() and policy.exists() and any(one.key == "source.kit" for one in parts[str(settings)]):
        parts[str(policy)] = effective_policy(policy)
    data = {name: [asdict(one) for one in rows if _wanted(one, changed)] for name, rows in parts.items()}
    blocks = [
        f"{name}\n{aligned([(one.key, one.origin, one.value) for one in rows if _wanted(one, changed)])}"
        for name, rows in parts.items()
        if any(_wanted(one, changed) for one in rows)
    ]
    print_result(output, {"files": data}, "\n\n".join(blocks) or "every key has its default")


def _wanted(one: Effective, changed: bool) -> bool:
    return not changed or one.origin != "default"
