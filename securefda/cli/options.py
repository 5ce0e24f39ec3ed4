"""Options, the run folder and the handling of Ctrl-C and SIGTERM, shared by several commands."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, TypeVar

import typer

from securefda.cli.output import Format
from securefda.errors import ConfigError, ExitCode, SecureFdaError, Terminated

Kit = Annotated[Path, typer.Argument(metavar="KIT", help="The startup kit of a site.")]
FederationFolder = Annotated[Path, typer.Argument(metavar="FOLDER", help="The federation's folder, with ca/ in it.")]
SiteId = Annotated[str, typer.Argument(metavar="SITE", help="The site's id.")]
Overrides = Annotated[
    list[str], typer.Option("--set", metavar="KEY=VALUE", help="Override a setting, e.g. strategy.rounds=3.")
]
Seed = Annotated[int, typer.Option("--seed", min=0, max=2**63 - 1, help="Seed of data splits, models and training.")]
RayExposed = Annotated[
    bool, typer.Option("--ray-exposed", help="Start Ray although some of its ports are open on every address.")
]
Launcher = Annotated[
    int | None, typer.Option("--launcher", metavar="FD", hidden=True, help="Socket to the command that started it.")
]
ExpectedCa = Annotated[
    str | None, typer.Option("--ca", metavar="FINGERPRINT", help="The CA's fingerprint, learnt another way.")
]
OutputFormat = Annotated[Format, typer.Option("--format", help="Text for people, or one JSON envelope.")]


def file_or_sample(value: str) -> Path:
    """Return a file; a bare name that is no file here names a sample.

    Raises:
        ConfigError: there is neither, and the name has no suffix, as a file's has, or is nearly a sample's.
    """
    from difflib import get_close_matches

    from securefda.samples import sample, sample_names

    samples, path = sample_names(), Path(value)
    if os.path.lexists(path) or value != path.name:
        return path
    if value in samples:
        return sample(value)
    near = get_close_matches(path.stem, samples, n=1, cutoff=0.75)
    if path.suffix and not near:
        return path
    hint = f"{f'did you mean {near[0]}? ' if near else ''}samples: {', '.join(samples)}"
    raise ConfigError(value, "is neither a file here nor the name of a sample", hint=hint)


FederationFile = Annotated[
    Path,
    typer.Argument(
        metavar="FEDERATION.toml",
        help="The federation's configuration, or the name of a sample, e.g. digits.",
        parser=file_or_sample,
    ),
]


def now() -> datetime:
    """Return this machine's clock, in UTC."""
    return datetime.now(UTC)


def default_out(name: str) -> Path:
    """Return the default run folder: ``runs/NAME-TIME`` below the current folder."""
    return Path("runs") / f"{name}-{now():%Y%m%dT%H%M%SZ}"


def require_fresh(out: Path) -> Path:
    """Return ``out`` unless it holds a run already.

    Raises:
        ConfigError: it does; a second run must not mix its rounds with the first one's.
    """
    from securefda.operations.run_folder import METRICS_FILE, SUMMARY_FILE

    if (out / SUMMARY_FILE).exists() or (out / METRICS_FILE).exists():
        raise ConfigError("--out", f"{out} holds a run already", hint="name a new folder, or --fresh to replace it")
    return out


def is_finished(out: Path) -> bool:
    """Return whether a run in ``out`` is complete, so that there is nothing to go on with."""
    from securefda.operations.run_folder import METRICS_FILE, SUMMARY_FILE, read_run

    if not any((out / name).exists() for name in (METRICS_FILE, SUMMARY_FILE)):
        return False
    summary = read_run(out).summary
    return summary is not None and summary["status"] == "finished"


NumberT = TypeVar("NumberT", int, float)


def numbers(option: str, text: str, kind: type[NumberT]) -> tuple[NumberT, ...]:
    """Read ``1,2,4``; empty text is no number.

    Raises:
        ConfigError: a part is no number of this kind.
    """
    try:
        return tuple(kind(part) for part in text.split(",")) if text else ()
    except ValueError as error:
        what = "whole numbers" if kind is int else "numbers"
        raise ConfigError(option, f"{text!r} is no list of {what}", hint=f"for example {option} 1,2,4") from error


def pairs(option: str, values: list[str]) -> dict[str, list[str]]:
    """Read repeated ``SITE=VALUE`` options into site -> values.

    Raises:
        ConfigError: one is not of that form.
    """
    by_site: dict[str, list[str]] = {}
    for text in values:
        site, equals, value = text.partition("=")
        if not (site and equals and value):
            raise ConfigError(f"{option} {text}", "is not SITE=VALUE")
        by_site.setdefault(site, []).append(value)
    return by_site


class RunInterruptedError(SecureFdaError):
    """Ctrl-C was pressed."""

    exit_code = ExitCode.INTERRUPTED


class RunTerminatedError(RunInterruptedError):
    """SIGTERM asked the process to end."""

    exit_code = ExitCode.TERMINATED


@contextmanager
def terminable() -> Iterator[None]:
    """Turn SIGTERM into :class:`Terminated`, so that what is open is closed, and temporary files go.

    Only the main thread can: in another one, from which Python code may start a run, it does nothing.

    Raises:
        RunTerminatedError: it came.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def terminate(_number: int, _frame: object) -> None:
        raise Terminated

    before = signal.signal(signal.SIGTERM, terminate)
    try:
        yield
    except Terminated:
        raise RunTerminatedError("interrupted") from None
    finally:
        signal.signal(signal.SIGTERM, before)


@contextmanager
def interruptible(kept: str) -> Iterator[None]:
    """Turn Ctrl-C or SIGTERM into an error whose hint says what is kept, and how to go on."""
    try:
        with terminable():
            yield
    except RunTerminatedError as error:
        error.hint = kept
        raise
    except KeyboardInterrupt:
        raise RunInterruptedError("interrupted", hint=kept) from None
