"""The ``securefda`` command, and ``python -m securefda``: Ctrl-C ends it in one line, also while it still imports."""

import sys


def main() -> int:
    """Run the command with the process's arguments, and return its exit code."""
    try:
        from securefda.cli import main as command  # noqa: PLC0415 - so that Ctrl-C is caught here

        return command()
    except KeyboardInterrupt:
        sys.stderr.write("error: interrupted\n")
        return 130  # ExitCode.INTERRUPTED; securefda.errors may not be imported yet


if __name__ == "__main__":
    sys.exit(main())
