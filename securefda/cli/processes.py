"""``securefda aggregator start`` and ``securefda source start``: one site's process, from its kit."""

from __future__ import annotations

import os
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import Annotated

import typer

from securefda.cli.options import Kit, Launcher, OutputFormat, Overrides, interruptible, now
from securefda.cli.output import Format, print_result, say
from securefda.text import quoted

aggregator = typer.Typer(help="Start the target's process.")
source = typer.Typer(help="Start a source's process, or leave.")

ConfigFile = Annotated[Path, typer.Option("--config", metavar="FILE", help="The site's settings file.")]
Out = Annotated[Path | None, typer.Option("--out", help="Folder for state and results; overrides the file.")]
AcceptRun = Annotated[
    bool,
    typer.Option(
        "--accept-run",
        help="Take part in one run beyond release.max-runs, and go on after release.max-unfinished.",
    ),
]
Processes = Annotated[
    int | None,
    typer.Option("--processes", min=0, max=64, help="Processes that train together; 0 for one per GPU."),
]
RunSeed = Annotated[int | None, typer.Option("--seed", min=0, help="Seed of the run; overrides the file.")]


@aggregator.command("start")
def start_aggregator(
    config: ConfigFile,
    out: Out = None,
    seed: RunSeed = None,
    overrides: Overrides = [],
    launcher: Launcher = None,
    output: OutputFormat = Format.TXT,
) -> None:
    """Run the aggregator until every round is done; started again, it goes on after the last finished round."""
    from securefda.cli.console import console_reporter
    from securefda.local.launched import launched
    from securefda.machine import without_collections
    from securefda.operations.report import report_after
    from securefda.operations.run_folder import require_run_folder
    from securefda.operations.summary_text import run_text
    from securefda.site.config import load_aggregator

    with launched(launcher) as ours:
        _refuse_torchrun("leave it out: the target trains in one process")
        settings = load_aggregator(config, [*overrides, *_flags("aggregator", out, seed)], os.environ, note=say)
        folder = settings.aggregator.out
        if launcher is None:  # else its starter has looked, and put the settings there
            require_run_folder(folder, "aggregator.out" if out is None else "--out")
        # Who launched this process writes the report, which then has the last words of the sources too
        report = report_after(folder) if launcher is None else nullcontext()
        with interruptible(f"every finished round is in {folder}"), report, console_reporter() as reporter:
            reporter.phase("starting")
            with without_collections():
                from securefda.aggregator import process  # with torch, for which no wrong file should have to wait

            summary = process.main(settings, ours.relay(reporter))
    print_result(output, summary.as_json() | {"out": str(folder)}, run_text(summary, folder))


@source.command("start")
def start_source(
    config: ConfigFile,
    out: Out = None,
    seed: RunSeed = None,
    processes: Processes = None,
    accept_run: AcceptRun = False,
    overrides: Overrides = [],
    launcher: Launcher = None,
    output: OutputFormat = Format.TXT,
) -> None:
    """Take part as a source until the aggregator ends the run."""
    from securefda.cli.console import console_reporter
    from securefda.local.launched import launched
    from securefda.machine import without_collections
    from securefda.operations.run_folder import require_run_folder
    from securefda.site.config import load_source

    with launched(launcher) as ours:
        _refuse_torchrun("leave it out, and give --processes N: the source starts the other processes by itself")
        flags = [*_flags("source", out, seed), *([] if processes is None else [f"training.processes={processes}"])]
        settings = load_source(config, [*overrides, *flags], os.environ)
        folder = settings.source.out
        if launcher is None:  # else its starter has looked, and put the settings there
            require_run_folder(folder, "source.out" if out is None else "--out")
        with interruptible(f"every finished round is in {folder}"), console_reporter(knows_rounds=False) as reporter:
            reporter.phase("starting")
            with without_collections():
                from securefda.source import source_process  # with torch, for which no wrong file should have to wait
                from securefda.training.team import started_team

            with started_team(settings.training.processes, settings.training.device) as team:
                source_process.main(settings, ours.relay(reporter), accept_run=accept_run, team=team)
    print_result(output, {"out": str(folder)}, f"the run is over; this site's own record is in {folder}")


@source.command("leave")
def leave(
    kit: Kit,
    out: Annotated[Path, typer.Option("--out", help="The page to write.")] = Path("leaving.html"),
    certificate: Annotated[
        Path | None,
        typer.Option("--certificate", metavar="FILE", help="Revoke the kit's keys now, for good, by this signed file."),
    ] = None,
    output: OutputFormat = Format.TXT,
) -> None:
    """Write what a source has released so far, by run, and what stays with others: for a site that leaves.

    It verifies the site's logs and changes nothing. Stop the process, then have the authority revoke the site.

    With --certificate the site leaves: no process starts with this kit any more. Sites that take the file (securefda
    site left) refuse its keys from then on, before the authority has revoked it.
    """
    from securefda.disk import PUBLIC_MODE, require_new, write_file, writing_errors
    from securefda.errors import ConfigError
    from securefda.pages.html import static_page
    from securefda.site.kit import POLICY_FILE, load_kit
    from securefda.site.left import take
    from securefda.site.policy import load_policy
    from securefda.source.leaving import leaving_certificate, leaving_page

    require_new("--out", out)
    if certificate is not None:
        require_new("--certificate", certificate)
        if certificate.resolve() == out.resolve():
            raise ConfigError("--certificate", f"{certificate} is the page, too", hint="name another file")
    own = load_kit(kit, now(), expected_role="source")
    found = leaving_page(own, load_policy(own.local / POLICY_FILE), now())
    page = static_page(found, f"{own.site_id}: what it has released", "securefda source leave", sheet=True)
    signed = None if certificate is None else leaving_certificate(own, now())
    with writing_errors(out):
        write_file(out, page.encode("utf-8"), PUBLIC_MODE)
    lines = [f"{found.state.word}; the page is {out}"]
    if certificate is not None and signed is not None:
        with writing_errors(certificate):
            write_file(certificate, signed.to_bytes(), PUBLIC_MODE)
        take(own.local, own.roster, signed)
        lines += [
            f"the keys of {own.site_id} are revoked from {signed.day}: no process starts with this kit any more",
            f"send {certificate} to the authority and to every site, which runs: "
            f"securefda site left KIT {quoted(certificate.name)}",
        ]
    data = {"site": own.site_id, "file": str(out), "certificate": str(certificate) if certificate else None}
    print_result(output, data, "\n".join(lines))


@source.command("follow", hidden=True)
def follow_leader(
    rank: Annotated[int, typer.Option(min=1)],
    processes: Annotated[int, typer.Option(min=2)],
    link: Annotated[int, typer.Option(metavar="FD", help="Socket to the process that leads.")],
) -> None:
    """Train with the process of a source that started this one."""
    from securefda.source.follower import follow
    from securefda.training.team import TeamGoneError, joined_team

    with suppress(TeamGoneError):  # the leader has ended, and said why
        follow(joined_team(rank, processes, link))


def _refuse_torchrun(hint: str) -> None:
    """Refuse to start under torchrun, which opens ports through which anyone who reaches them can run code.

    Raises:
        ConfigError: torchrun started this process.
    """
    from securefda.errors import ConfigError

    if "TORCHELASTIC_RUN_ID" in os.environ:
        why = "started this process, and its ports let anyone who reaches them run code as this user"
        raise ConfigError("torchrun", why, hint=hint)


def _flags(table: str, out: Path | None, seed: int | None) -> list[str]:
    given = {"out": out, "seed": seed}
    return [f"{table}.{key}={value}" for key, value in given.items() if value is not None]
