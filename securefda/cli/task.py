"""``securefda task``: try a task on the rows of a site, and prepare public data."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from securefda.cli.options import OutputFormat, Overrides, Seed, file_or_sample, now
from securefda.cli.output import Format, print_outcome, print_result
from securefda.errors import ConfigError
from securefda.text import aligned, quoted

if TYPE_CHECKING:
    from securefda.local.task_check import TaskFound
    from securefda.site.config import AggregatorConfig, SourceConfig
    from securefda.site.kit import Kit

app = typer.Typer(help="Try a task on a site's rows, and prepare public data.")


@app.command("check")
def check(
    place: Annotated[
        Path,
        typer.Argument(
            metavar="FEDERATION.toml|KIT",
            help="A federation's configuration, or the name of a sample; or a site's kit.",
            parser=file_or_sample,
        ),
    ],
    site: Annotated[
        list[str], typer.Option("--site", metavar="SITE", help="Only this site of a federation; may be repeated.")
    ] = [],
    config: Annotated[
        Path | None, typer.Option("--config", help="The site's settings; default: local/settings.toml of the kit.")
    ] = None,
    overrides: Overrides = [],
    seed: Seed = 0,
    output: OutputFormat = Format.TXT,
) -> int:
    """Try one batch of every site whose rows are here: rows, labels, forward and backward pass, metrics.

    Where training adds noise, also the gradients of single rows. Nothing is trained, sent, charged or written.
    """
    if config is not None and not place.is_dir():
        raise ConfigError("--config", "is of a kit's site, and this is a federation's file", hint="leave it out")
    checked = (
        _check_kit(place, site, config, overrides) if place.is_dir() else _check_file(place, site, overrides, seed)
    )
    return print_outcome(output, checked.as_json(), _text(checked), checked.error)


@app.command("convert-uci-heart")
def convert_uci_heart(
    folder: Annotated[
        Path, typer.Argument(metavar="DIR", help="Folder with the four files processed.HOSPITAL.data of UCI.")
    ],
    out: Annotated[Path, typer.Option("--out", help="Folder for the CSV files.")],
    output: OutputFormat = Format.TXT,
) -> None:
    """Turn UCI's original heart disease files into the CSV files that the task fed_heart reads."""
    from securefda.tasks.uci_heart import convert

    converted = convert(folder, out)
    rows = [(one.hospital, f"{one.patients} patients", str(one.file)) for one in converted]
    then = f"securefda run fed_heart --set task.data-dir={quoted(out)}"
    data = {"files": [{"hospital": one.hospital, "file": one.file, "patients": one.patients} for one in converted]}
    print_result(output, data, f"{aligned(rows)}\n\nnext: {then}")


def _check_file(file: Path, sites: list[str], overrides: list[str], seed: int) -> TaskFound:
    from securefda.machine import without_collections
    from securefda.site.config import load_federation

    config = load_federation(file, overrides, os.environ)
    with without_collections():
        from securefda.local.task_check import (
            check_federation,
        )  # with torch, for which no wrong file should have to wait

    return check_federation(config, sites, seed)


def kit_and_settings(
    folder: Path, sites: list[str], settings: Path | None, overrides: list[str]
) -> tuple[Kit, AggregatorConfig | SourceConfig]:
    """Return a site's kit and the settings of its process, from ``settings`` or the kit.

    Raises:
        ConfigError, CertificateError: one of them is wrong, or the kit is another site's than the one in ``sites``.
    """
    from securefda.site.config import load_aggregator, load_source
    from securefda.site.kit import LOCAL, SETTINGS_FILE, load_kit

    kit = load_kit(folder, now())
    if sites and sites != [kit.site_id]:
        raise ConfigError("--site", f"{folder} is the kit of {kit.site_id}", hint="leave it out")
    file = settings or folder / LOCAL / SETTINGS_FILE
    return kit, (load_aggregator if kit.role == "target" else load_source)(file, overrides, os.environ)


def _check_kit(folder: Path, sites: list[str], settings: Path | None, overrides: list[str]) -> TaskFound:
    kit, config = kit_and_settings(folder, sites, settings, overrides)
    from securefda.local.task_check import check_kit

    return check_kit(kit, config)


def _text(found: TaskFound) -> str:
    rows = [("site", "split", "rows", "features", "labels")]
    for site in found.sites:
        for split in site.splits:
            shapes = split.features if isinstance(split.features, dict) else {"": split.features}
            shape = ", ".join(f"{name} {' x '.join(map(str, one)) or '1'}".strip() for name, one in shapes.items())
            rows.append((site.site, split.split, f"{split.rows:,}", shape, split.labels))
    lines = [
        f"{found.factory}: {found.parameters:,} parameters in {found.layers} layers",
        "",
        *([aligned(rows), ""] if len(rows) > 1 else []),
    ]
    tried = "forward, loss, backward, metrics" + (", gradients of single rows" if found.with_noise else "")
    for site in found.sites:
        if site.error is not None:
            lines += [f"FAILED: {site.error}", *(f"  note: {note}" for note in site.notes)]
            continue
        batch = site.batch
        how = tried if "gradient_norm" in batch else "forward"
        named = {name: ".2f" if name == "accuracy" else ".3g" for name in batch if name != "rows"}
        figures = ", ".join(f"{name.replace('_', ' ')} {batch[name]:{form}}" for name, form in named.items())
        lines.append(
            f"ok: {site.site}: {how} of a batch of {batch['rows']:.0f} rows{f' ({figures})' if figures else ''}"
        )
        lines += [f"  read from {site.read_from}"] if site.read_from else []
        lines += [f"  note: {note}" for note in site.notes]
    lines += ["", "look at this:", *(f"  {line}" for line in found.look_at)] if found.look_at else []
    return "\n".join(lines)
