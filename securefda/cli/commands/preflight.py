"""``securefda preflight``: what would go wrong in a run, before the run."""

from __future__ import annotations

import os
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from securefda.cli.options import Kit, OutputFormat, now
from securefda.cli.output import Format, aligned, print_error, print_result
from securefda.errors import ExitCode, SecureFdaError

if TYPE_CHECKING:
    from securefda.config import AggregatorConfig, SourceConfig
    from securefda.federation.preflight import Finding, Probes


class PreflightError(SecureFdaError):
    """A check failed; a run would end with this exit code."""

    def __init__(self, finding: Finding) -> None:
        super().__init__(f"{finding.check}: {finding.message}", hint=finding.mend)
        self.exit_code = finding.exit_code


def preflight(
    kit: Kit,
    config: Annotated[
        Path | None, typer.Option("--config", help="The site's settings; default: local/settings.toml of the kit.")
    ] = None,
    address: Annotated[
        str | None, typer.Option("--address", metavar="HOST:PORT", help="Check this address, not the kit's.")
    ] = None,
    output: OutputFormat = Format.TXT,
) -> None:
    """Check a site before a run: kit, certificates, clock, network, disk, policy, device and data."""
    from securefda.federation.endpoints import Address
    from securefda.federation.kit import LOCAL, SETTINGS_FILE
    from securefda.federation.preflight import exit_code
    from securefda.federation.preflight import preflight as check

    settings = config or kit / LOCAL / SETTINGS_FILE
    where = Address.parse(address) if address else None
    has_settings = config is not None or settings.exists()
    findings = check(kit, now(), address=where, probes=_probes(kit, settings if has_settings else None))
    data = {"kit": str(kit), "findings": [_plain(finding) for finding in findings]}
    table = _text(findings)
    if exit_code(findings) is ExitCode.OK:
        print_result(output, data, table)
        return
    failure = PreflightError(next(finding for finding in findings if finding.exit_code is not ExitCode.OK))
    if output is Format.TXT:
        typer.echo(table)
    raise typer.Exit(print_error(failure, as_json=output is Format.JSON, data=data))


def _probes(kit: Path, settings: Path | None) -> Probes:
    from securefda.federation.preflight import Probes

    if settings is None:
        return Probes(policy=lambda: _check_policy(kit))
    return Probes(
        policy=lambda: _check_policy(kit),
        device=lambda: _check_device(kit, settings),
        data=lambda: _check_data(kit, settings),
    )


def _check_policy(path: Path) -> str:
    from securefda.federation.kit import LOCAL, POLICY_FILE, load_kit
    from securefda.policy import load_policy

    policy = load_policy(path / LOCAL / POLICY_FILE)
    policy.session_limits(load_kit(path, now()).roster)
    return f"at most {policy.max_visibility}, k-min {policy.k_min}, n-c {policy.n_c}"


def _check_device(kit: Path, settings: Path) -> str:
    from securefda.training import choose_device, describe_device

    return describe_device(choose_device(_load(kit, settings).training.device))


def _check_data(path: Path, settings: Path) -> str:
    from securefda.federation.kit import load_kit
    from securefda.rounds.composition import task_of, training_rows

    kit, config = load_kit(path, now()), _load(path, settings)
    rows = len(training_rows(task_of(config.task, kit.roster, _process_seed(config)), kit.site_id))
    return f"{config.task.factory}: {rows} training rows at {kit.site_id}"


def _load(path: Path, settings: Path) -> AggregatorConfig | SourceConfig:
    from securefda.config import load_aggregator, load_source
    from securefda.federation.kit import load_kit

    load = load_aggregator if load_kit(path, now()).role == "target" else load_source
    return load(settings, (), os.environ)


def _process_seed(config: AggregatorConfig | SourceConfig) -> int:
    from securefda.config import AggregatorConfig

    return (config.aggregator if isinstance(config, AggregatorConfig) else config.source).seed


def _plain(finding: Finding) -> dict[str, Any]:
    return asdict(finding) | {"level": str(finding.level), "exit_code": int(finding.exit_code)}


def _text(findings: tuple[Finding, ...]) -> str:
    rows = []
    for finding in findings:
        rows.append((str(finding.level), finding.check, finding.message))
        if finding.mend:
            rows.append(("", "", f"-> {finding.mend}"))
    return aligned(rows)
