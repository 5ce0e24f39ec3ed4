"""``securefda preflight``: what would go wrong in a run, before the run."""

from __future__ import annotations

import os
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from securefda.cli.options import OutputFormat, now
from securefda.cli.output import Format, print_error, print_result
from securefda.errors import ConfigError, ExitCode, SecureFdaError
from securefda.text import aligned

if TYPE_CHECKING:
    from securefda.site.config import AggregatorConfig, SourceConfig
    from securefda.site.preflight import Finding, Probes


class PreflightError(SecureFdaError):
    """A check failed; a run would end with this exit code."""

    def __init__(self, finding: Finding) -> None:
        super().__init__(f"{finding.check}: {finding.message}", hint=finding.mend)
        self.exit_code = finding.exit_code


def preflight(
    kits: Annotated[list[Path], typer.Argument(metavar="KIT...", help="Startup kits; usually one, the site's own.")],
    config: Annotated[
        Path | None, typer.Option("--config", help="The site's settings; default: local/settings.toml of the kit.")
    ] = None,
    address: Annotated[
        str | None, typer.Option("--address", metavar="HOST:PORT", help="Check this address, not the kit's.")
    ] = None,
    output: OutputFormat = Format.TXT,
) -> None:
    """Check a site before a run: kit, certificates, clock, network, disk, policy, device and data.

    With the kits of all sources also whether their policies can be served together.
    """
    if len(kits) > 1 and config is not None:
        raise ConfigError("--config", "is of one site, and there are several kits", hint="name one kit")
    by_kit = {kit: _findings(kit, config, address) for kit in kits}
    levels = _levels_finding(kits) if len(kits) > 1 else ()
    findings = (*(finding for found in by_kit.values() for finding in found), *levels)
    data: dict[str, Any] = {"findings": [_plain(finding) for finding in findings]}
    if len(kits) == 1:
        data, table = {"kit": str(kits[0])} | data, _text(findings)
    else:
        parts = [f"{kit}\n{_text(found)}" for kit, found in by_kit.items()]
        data = {"kits": {str(kit): [_plain(finding) for finding in found] for kit, found in by_kit.items()}} | data
        table = "\n\n".join([*parts, _text(levels)])
    _print(output, data, table, findings)


def _print(output: Format, data: dict[str, Any], table: str, findings: tuple[Finding, ...]) -> None:
    from securefda.site.preflight import exit_code

    if exit_code(findings) is ExitCode.OK:
        print_result(output, data, table)
        return
    failure = PreflightError(next(finding for finding in findings if finding.exit_code is not ExitCode.OK))
    if output is Format.TXT:
        typer.echo(table)
    raise typer.Exit(print_error(failure, as_json=output is Format.JSON, data=data))


def _findings(kit: Path, config: Path | None, address: str | None) -> tuple[Finding, ...]:
    from securefda.site.endpoints import Address
    from securefda.site.kit import LOCAL, SETTINGS_FILE
    from securefda.site.preflight import preflight as check

    settings = config or kit / LOCAL / SETTINGS_FILE
    where = Address.parse(address) if address else None
    has_settings = config is not None or settings.exists()
    return check(kit, now(), address=where, probes=_probes(kit, settings if has_settings else None))


def _probes(kit: Path, settings: Path | None) -> Probes:
    from securefda.site.preflight import Probes

    if settings is None:
        return Probes(policy=lambda: _check_policy(kit, None))
    return Probes(
        policy=lambda: _check_policy(kit, settings),
        device=lambda: _check_device(kit, settings),
        data=lambda: _check_data(kit, settings),
    )


def _check_policy(path: Path, settings: Path | None) -> str:
    """The policy is the one that the site signed, and this federation and task can meet it."""
    from securefda.cli.policies import naming
    from securefda.site.kit import load_kit
    from securefda.site.policy import check_task, check_training, load_signed_policy, require_satisfiable

    kit = load_kit(path, now())
    with naming(kit.site_id):
        policy = load_signed_policy(kit)
        policy.session_limits(kit.roster)
        if kit.role == "source":
            require_satisfiable(policy, kit.site_id, tuple(entry.site_id for entry in kit.roster.sources))
    if kit.role == "source" and settings is not None:
        config = _load(path, settings)
        check_task(policy, config.task.factory)
        check_training(policy, config.training.dp.noise_multiplier, config.training.dp.max_grad_norm)
    sums = f"min-others {policy.min_others}, max-colluders {policy.max_colluders}"
    caps = f"kappa {policy.norm_cap.kappa:g} per {policy.norm_cap.granularity}"
    return f"at most {policy.max_visibility}, {sums}, {caps}; signed by {kit.site_id}"


def _levels_finding(kits: list[Path]) -> tuple[Finding, ...]:
    """Whether there is a level for each source that all policies agree with."""
    from securefda.cli.policies import levels_of_kits
    from securefda.site.preflight import Finding, Level

    try:
        levels, absent = levels_of_kits(kits, now())
    except SecureFdaError as error:
        return (Finding("levels", Level.FAIL, str(error), error.hint, error.exit_code),)
    if absent:
        line = f"not looked at: the policies of {', '.join(absent)} are not here"
        return (Finding("levels", Level.WARN, line, "name the kits of all sources"),)
    return (Finding("levels", Level.OK, ", ".join(f"{site} at {level}" for site, level in levels.items())),)


def _check_device(kit: Path, settings: Path) -> str:
    from securefda.training import choose_device, describe_device

    return describe_device(choose_device(_load(kit, settings).training.device))


def _check_data(path: Path, settings: Path) -> str:
    """The rows are there, the model can be trained on them, and with noise the next round is paid for."""
    from securefda.bootstrap import Member, task_of, trainer_at, training_rows
    from securefda.site.config import AggregatorConfig, budget_of
    from securefda.site.drawing import REPEATABLE
    from securefda.site.kit import load_kit
    from securefda.site.policy import load_signed_policy
    from securefda.transport.wire import encode

    kit, config = load_kit(path, now()), _load(path, settings)
    if isinstance(config, AggregatorConfig):
        process, budget = config.aggregator, budget_of(config.privacy.budget)
    else:
        process, budget = config.source, load_signed_policy(kit).dp.budget
    task = task_of(config.task, kit.roster, process.seed)
    rows = training_rows(task, kit.site_id)
    member = Member(kit.roster, kit.site_id, kit.signing_key, encode)
    _, notes = trainer_at(process, config.training, member, task, rows, secret=None, budget=budget)
    if process.repeatable_training and not config.training.dp.noise_multiplier:
        notes = (*notes, REPEATABLE)
    return "; ".join([f"{config.task.factory}: {len(rows)} training rows at {kit.site_id}", *notes])


def _load(path: Path, settings: Path) -> AggregatorConfig | SourceConfig:
    from securefda.site.config import load_aggregator, load_source
    from securefda.site.kit import load_kit

    load = load_aggregator if load_kit(path, now()).role == "target" else load_source
    return load(settings, (), os.environ)


def _plain(finding: Finding) -> dict[str, Any]:
    return asdict(finding) | {"level": str(finding.level), "exit_code": int(finding.exit_code)}


def _text(findings: tuple[Finding, ...]) -> str:
    rows = []
    for finding in findings:
        rows.append((str(finding.level), finding.check, finding.message))
        if finding.mend:
            rows.append(("", "", f"-> {finding.mend}"))
    return aligned(rows)
