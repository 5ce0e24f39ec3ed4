"""The ``securefda`` command, from arguments to an exit code: every error is one line and a hint, never a traceback."""

from __future__ import annotations

import errno
import gc
import os
import re
import sys
from collections.abc import Sequence

from typer import Abort
from typer.exceptions import TyperException

from securefda.cli.options import RunInterruptedError
from securefda.cli.output import Verbosity, print_error, set_verbosity, wants_json
from securefda.errors import OWNERS_ALONE, ConfigError, ExitCode, SecureFdaError

__all__ = ["main", "run"]

_PLAIN = (
    (r"Input should be (?:greater than or equal to|at least) (\S+)", r"must be at least \1"),
    (r"Input should be less than or equal to (\S+)", r"must be at most \1"),
    (r"Input should be a valid integer.*", "must be a whole number"),
    (r"Input should be a valid number.*", "must be a number"),
    (r"(\S+) is not in the range x>=(\S+)", r"must be at least \2, not \1"),
    (r"(?:\w+: )?embedded null (?:byte|character in path)", "holds a NUL character"),  # of 3.12, and of 3.13
)
"""The parser's words for a wrong value, and ours."""
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_SLIP = 0.7


class UsageError(ConfigError):
    """An argument is missing, unknown or malformed."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command with ``arguments``, by default the process's own, and return its exit code."""
    if arguments is not None:
        return run(arguments)
    code = run(sys.argv[1:])
    gc.freeze()  # else Python looks for cycles among all that torch has made, for a quarter of a second, before it ends
    # End the process at once if a thread still trains: it cannot be stopped, and Python would abort because of it
    offload = sys.modules.get("securefda.transport.event_loop")
    if offload is not None and offload.work_goes_on():
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    return code


def run(arguments: Sequence[str]) -> int:
    """Run one command.

    Args:
        arguments: as the process got them, without its own name.

    Returns:
        The exit code, one of :class:`~securefda.errors.ExitCode`. Results go to stdout, all else to stderr.
    """
    as_json = wants_json(arguments)
    set_verbosity(Verbosity.NORMAL)
    try:
        from securefda.cli.app import COMMAND

        result = COMMAND(args=list(arguments) or ["--help"], prog_name="securefda", standalone_mode=False)
        if result == ExitCode.INTERRUPTED:  # what typer makes of Ctrl-C, without a word
            raise KeyboardInterrupt
        return int(result) if isinstance(result, int) else ExitCode.OK
    except SecureFdaError as error:
        return print_error(error, as_json=as_json)
    except TyperException as error:
        return print_error(_usage_error(error), as_json=as_json)
    except (KeyboardInterrupt, Abort) as error:
        if isinstance(error, Abort) and sys.stderr.isatty():
            sys.stderr.write("\n")  # a question stands on this line
        return print_error(RunInterruptedError("interrupted"), as_json=as_json)
    except BrokenPipeError:
        # The reader of our output has gone; the interpreter must not fail again when it flushes at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return ExitCode.FAILED
    except (OSError, RuntimeError) as error:
        disk_error = _disk_error(error)
        if disk_error is None:
            raise  # a mistake of ours, with its traceback
        return print_error(disk_error, as_json=as_json)


def _disk_error(error: OSError | RuntimeError) -> SecureFdaError | None:
    """Turn an operating system's error about a user's file into one line; None if it is about no such file."""
    if isinstance(error, RuntimeError):  # what Path.resolve says up to Python 3.12, without an errno
        _, found, place = str(error).partition("Symlink loop from ")
        why = f"cannot be used: {os.strerror(errno.ELOOP)}"
        return ConfigError(place.strip("'"), why, hint="check the path") if found else None
    if error.errno in _FULL:
        return SecureFdaError(
            f"{error.filename or 'the disk'}: the disk is full", hint="free some space, then start again"
        )
    if error.filename is None:
        return None
    return ConfigError(
        str(error.filename),
        f"cannot be used: {error.strerror}",
        hint="check the path and the permissions of its folder",
    )


def _near_options(found: re.Match[str]) -> str:
    """Return the parser's suggested options that are close enough to be a typing error."""
    from difflib import get_close_matches

    asked = re.search(r"(--?[^\s:]+)", found.string)
    near = get_close_matches(asked[1] if asked else "", found[1].split(", "), cutoff=_SLIP)
    return f". did you mean {', '.join(near)}?" if near else ""


def _usage_error(error: TyperException) -> UsageError:
    """Turn the parser's message, which may end with its own suggestion, into one line."""
    message = " ".join(error.format_message().split()).replace("Value error, ", "").rstrip(".")
    for theirs, ours in _PLAIN:
        message = re.sub(theirs, ours, message)
    message = re.sub(r" \(Possible options: (.*)\)", _near_options, message)
    what, _, suggestion = message.partition(". ")
    if suggestion.startswith("Did you mean "):  # 'run', 'runs'?
        suggestion = f"did you mean {suggestion.removeprefix('Did you mean ').replace(chr(39), '')}"
    context = getattr(error, "ctx", None)
    command = context.command_path if context else "securefda"
    if what.endswith("is not readable"):
        suggestion = OWNERS_ALONE
    return UsageError(
        "arguments", what[:1].lower() + what[1:], hint=suggestion or f"{command} --help lists what there is"
    )
