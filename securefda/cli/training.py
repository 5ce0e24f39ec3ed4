"""``securefda run``, ``simulate`` and ``demo``: whole federations on this machine."""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import ExitStack, closing
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from securefda.cli.options import (
    FederationFile,
    Launcher,
    OutputFormat,
    Overrides,
    RayExposed,
    Seed,
    default_out,
    interruptible,
    is_finished,
    require_fresh,
)
from securefda.cli.output import Format, print_result, say
from securefda.errors import ConfigError

if TYPE_CHECKING:
    from securefda.local.ray_engine import RaySettings
    from securefda.operations.records import Summary
    from securefda.site.config import FederationConfig

DEMO, DEMO_RULE = "three_hospitals", "fedda_auto"
DEMO_COMPARED = ("source_only", "fedgp_auto")

Out = Annotated[Path | None, typer.Option("--out", help="Run folder; default: runs/NAME-TIME.")]
Fresh = Annotated[
    bool,
    typer.Option("--fresh", help="Delete the run in the run folder with its ledgers, and start from the beginning."),
]


class SimulationEngine(StrEnum):
    """The values of ``simulate --engine``."""

    LOCAL = "local"
    RAY = "ray"


def run(
    file: FederationFile,
    out: Out = None,
    overrides: Overrides = [],
    seed: Seed = 0,
    fresh: Fresh = False,
    output: OutputFormat = Format.TXT,
) -> None:
    """Run a federation on this machine, one process per site.

    Mutual TLS, real ports. An interrupted run goes on in its folder.
    """
    _one_run(file, out, overrides, seed, output, fresh=fresh)


def simulate(
    file: FederationFile,
    out: Out = None,
    overrides: Overrides = [],
    seed: Seed = 0,
    fresh: Fresh = False,
    engine: Annotated[
        SimulationEngine, typer.Option("--engine", help="Where sources are: in this process, or in processes of Ray.")
    ] = SimulationEngine.LOCAL,
    workers: Annotated[
        int | None, typer.Option("--workers", min=1, help="Processes of Ray; default: one a core.")
    ] = None,
    ray_address: Annotated[
        str, typer.Option("--ray-address", metavar="HOST:PORT", help="Of a Ray cluster; default: one made for this.")
    ] = "",
    ray_exposed: RayExposed = False,
    launcher: Launcher = None,
    output: OutputFormat = Format.TXT,
) -> None:
    """Run the same rounds in one process, for experiments. With Ray, for many sources."""
    from securefda.local.launched import launched
    from securefda.local.ray_engine import RaySettings

    if engine is SimulationEngine.LOCAL:
        for option, given in (("--workers", workers), ("--ray-address", ray_address), ("--ray-exposed", ray_exposed)):
            if given:
                raise ConfigError(option, f"means nothing to the engine {engine.value}", hint="add --engine ray")
        spread = None
    else:
        spread = RaySettings(workers or os.cpu_count() or 1, ray_address, ray_exposed)
    with launched(launcher):
        _one_run(file, out, overrides, seed, output, fresh=fresh, simulated=True, spread=spread)


def demo(
    out: Out = None,
    overrides: Overrides = [],
    seed: Seed = 0,
    output: OutputFormat = Format.TXT,
) -> None:
    """Run a clinic and three hospitals, beside the clinic alone.

    One process per site, masked updates; then what else the clinic could have done.
    """
    from securefda.bench.accuracy.columns import RULES, Schedule
    from securefda.cli.console import console_reporter
    from securefda.local.children import Starter
    from securefda.local.launcher import run_processes
    from securefda.local.side_by_side import side_by_side
    from securefda.operations.report import report_after
    from securefda.operations.run_folder import REPORT_FILE
    from securefda.operations.summary_text import comparison_text, result_rows, verdict
    from securefda.samples import sample
    from securefda.site.config import load_federation
    from securefda.text import aligned

    folder = out or default_out("demo")
    _require_demo_folder(folder)
    own = folder / DEMO_RULE
    config = load_federation(sample(DEMO), [*overrides, f"strategy.rule={DEMO_RULE}"], os.environ, note=say)
    schedule = Schedule.of(config)
    commands = {}
    for rule in DEMO_COMPARED:
        given = [*overrides, *RULES[rule].settings_for(schedule)]
        load_federation(sample(DEMO), given, os.environ)
        commands[rule] = [str(sample(DEMO)), "--seed", str(seed), *(f"--set={one}" for one in given)]
    for rule in (DEMO_RULE, *DEMO_COMPARED):
        require_fresh(folder / rule)
    with ExitStack() as ours:
        starter = ours.enter_context(closing(Starter(1 + len(config.federation.sources), as_copies=True)))
        kept = f"every finished round is in {own}; `securefda run` with --out {own} goes on"
        with interruptible(kept), report_after(own), console_reporter() as reporter:
            reporter.note(f"{DEMO_RULE}: one process per site, mutual TLS")
            main = run_processes(config, own, seed, reporter, starter=starter)
            reporter.note(f"{', '.join(DEMO_COMPARED)}: each in one process, to compare")
            others = ours.enter_context(side_by_side(commands, folder, starter))  # which do not wait for the report
        with interruptible(f"every finished round is in {folder}"), console_reporter() as reporter:
            compared = others.summaries(reporter)
    summaries = {**compared, DEMO_RULE: main}
    alone = {"target_only": main.target_only, "warm_target": main.warm_target}
    table = comparison_text(summaries, {name: one for name, one in alone.items() if one})
    words = verdict(main.as_json())
    data = {"out": str(folder), "runs": {rule: summary.as_json() for rule, summary in summaries.items()}}
    report = f"{own / REPORT_FILE} (and one for each other rule beside it)"
    result = aligned([("rule", DEMO_RULE), *result_rows(main, report, _OWN_ROWS)])
    text = "\n".join(["", table, "", _WHAT_THEY_ARE, "", *words, "", result])
    print_result(output, data | {"protected": words[0], "unprotected": words[1]}, text)


_OWN_ROWS = "securefda new NAME --tabular FILE --label COLUMN"
_WHAT_THEY_ARE = (
    "source_only: the hospitals' updates, averaged. target_only: the clinic's images alone. warm_target: the hospitals "
    "for as long as the warm-up lasts, then the clinic alone, at the same rates. The others: both, in every round."
)


def _require_demo_folder(folder: Path) -> None:
    """Refuse a folder with other files than an earlier demo's; that one's runs are refused each by itself."""
    from securefda.operations.run_folder import require_run_folder

    if not (folder / DEMO_RULE).is_dir():
        require_run_folder(folder)


def _one_run(
    file: Path,
    out: Path | None,
    overrides: list[str],
    seed: int,
    output: Format,
    *,
    fresh: bool,
    simulated: bool = False,
    spread: RaySettings | None = None,
) -> None:
    from securefda.operations.summary_text import run_text
    from securefda.site.config import load_federation

    config = load_federation(file, overrides, os.environ, note=say)
    folder = out or default_out(config.federation.name)
    make_ready(folder, fresh=fresh, simulated=simulated)
    summary = train(config, folder, seed, spread, simulated=simulated)
    print_result(output, summary.as_json() | {"out": str(folder)}, run_text(summary, folder))


def make_ready(folder: Path, *, fresh: bool, simulated: bool) -> None:
    """Refuse a folder that is not for this run; with ``fresh``, delete the run in it. An interrupted one may go on."""
    from securefda.operations.run_folder import clear_run, require_run_folder
    from securefda.operations.state import require_ended

    require_run_folder(folder)
    if fresh or not simulated:
        require_ended(folder)
    if fresh:
        clear_run(folder)
    elif simulated or is_finished(folder):
        require_fresh(folder)


def train(
    config: FederationConfig,
    folder: Path,
    seed: int,
    spread: RaySettings | None,
    *,
    simulated: bool,
    modules: Sequence[Path] = (),
    again: str = "`securefda run` with --out {folder}",
) -> Summary:
    """Run a federation into ``folder``, with progress on the console, and write its report.

    Processes also find modules in ``modules``. ``again`` is the call with which an interrupted run of processes goes
    on.
    """
    from securefda.cli.console import console_reporter
    from securefda.machine import without_collections
    from securefda.operations.report import report_after

    goes_on = "" if simulated else f"; {again.format(folder=folder)} goes on"
    with (
        interruptible(f"every finished round is in {folder}{goes_on}"),
        report_after(folder),
        console_reporter() as reporter,
    ):
        if simulated:
            with without_collections():
                from securefda.local.simulator import simulate as simulate_in_memory
                from securefda.local.slices import simulate_in_slices

            if spread is not None:
                return simulate_in_slices(config, folder, seed, reporter, spread)
            return simulate_in_memory(config, folder, seed, reporter)
        from securefda.local.launcher import run_processes

        return run_processes(config, folder, seed, reporter, modules=modules)
