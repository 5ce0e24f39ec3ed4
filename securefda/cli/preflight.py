"""``securefda preflight``: find what would go wrong in a run, before the run."""

from __future__ import annotations

import os
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from securefda.cli.options import OutputFormat, Overrides, now
from securefda.cli.output import Format, print_outcome
from securefda.errors import ConfigError, ExitCode, SecureFdaError
from securefda.text import aligned

if TYPE_CHECKING:
    from securefda.site.config import AggregatorConfig, SourceConfig
    from securefda.site.kit import Kit
    from securefda.site.preflight import Finding


class PreflightError(SecureFdaError):
    """Checks failed; a run would end with the exit code of the first."""

    def __init__(self, failed: list[Finding]) -> None:
        first, others = failed[0], dict.fromkeys(finding.check for finding in failed)
        del others[first.check]
        also = f"; also failed: {', '.join(others)}" if others else ""
        of_check = f"{first.check}: {first.message.removeprefix(f'{first.check}: ')}"
        super().__init__(f"{of_check}{also}", hint=first.hint)
        self.exit_code = first.exit_code


def preflight(
    kits: Annotated[list[Path], typer.Argument(metavar="KIT...", help="Startup kits; usually one, the site's own.")],
    config: Annotated[
        Path | None, typer.Option("--config", help="The site's settings; default: local/settings.toml of the kit.")
    ] = None,
    address: Annotated[
        str | None, typer.Option("--address", metavar="HOST:PORT", help="Check this address, not the kit's.")
    ] = None,
    out: Annotated[
        Path | None, typer.Option("--out", help="Folder for state and results, as at the start; overrides the file.")
    ] = None,
    overrides: Overrides = [],
    offline: Annotated[
        bool, typer.Option("--offline", help="Leave the network alone: do not look for the aggregator.")
    ] = False,
    output: OutputFormat = Format.TXT,
) -> int:
    """Check a site before a run, and list every failure.

    It looks at kit, certificates, clock, settings, network, disk, policy, key agreement, device and data. One batch of
    the site's rows goes through model, loss and metrics. With the kits of all sources it also checks whether their
    policies can be served together.
    """
    from securefda.site.endpoints import Address
    from securefda.site.kit import LOCAL, SETTINGS_FILE
    from securefda.site.preflight import check_levels, probes_of
    from securefda.site.preflight import preflight as check

    for option, value in (("--config", config), ("--out", out), ("--set", overrides)):
        if len(kits) > 1 and value:
            raise ConfigError(option, "is of one site, and there are several kits", hint="name one kit")
    where, by_kit = Address.parse(address, "--address") if address else None, {}
    for kit in kits:
        settings = config or kit / LOCAL / SETTINGS_FILE
        given = settings if config is not None or settings.exists() else None
        probes = probes_of(kit, given, now(), os.environ, _check_rows, overrides=overrides, out=out)
        by_kit[kit] = check(kit, now(), address=where, offline=offline, probes=probes)
    levels = (check_levels(kits, now(), os.environ),) if len(kits) > 1 else ()
    findings = (*(finding for found in by_kit.values() for finding in found), *levels)
    data: dict[str, Any] = {"findings": [asdict(finding) for finding in findings]}
    if len(kits) == 1:
        data, table = {"kit": str(kits[0])} | data, _text(findings)
    else:
        parts = [f"{kit}\n{_text(found)}" for kit, found in by_kit.items()]
        data = {"kits": {str(kit): [asdict(finding) for finding in found] for kit, found in by_kit.items()}} | data
        table = "\n\n".join([*parts, _text(levels)])
    failed = [finding for finding in findings if finding.exit_code is not ExitCode.OK]
    return print_outcome(output, data, table, PreflightError(failed) if failed else None)


def _check_rows(kit: Kit, config: AggregatorConfig | SourceConfig) -> list[str]:
    from securefda.machine import without_collections

    with without_collections():
        from securefda.bootstrap import check_rows  # with torch, for which no other check should have to wait
        from securefda.local.task_check import check_kit

    found = check_kit(kit, config)
    (tried,) = found.sites
    if tried.error is not None:
        raise tried.error
    figures = ", ".join(
        f"{name} {value:.4g}" for name, value in tried.batch.items() if name not in ("rows", "gradient_norm")
    )
    batch = f"one batch of {tried.batch['rows']:.0f} rows{f': {figures}' if figures else ''}"
    line, *warnings = check_rows(kit, config)
    read = f"; read from {tried.read_from}" if tried.read_from else ""
    return [f"{line}; {batch}{read}", *warnings, *tried.notes, *found.look_at]


def _text(findings: tuple[Finding, ...]) -> str:
    rows = []
    for finding in findings:
        rows.append((str(finding.level), finding.check, finding.message))
        if finding.hint:
            rows.append(("", "", f"-> {finding.hint}"))
    return aligned(rows)
