"""The ``securefda`` command, and ``python -m securefda``. It imports all else where Ctrl-C ends the process in one line."""

import sys


def main() -> int:
    """Run the command with the process's arguments, and return its exit code."""
    try:
        from securefda.cli import main as command

        return command()
    except KeyboardInterrupt:
        sys.stderr.write("error: interrupted\n")
        return 130  # ExitCode.INTERRUPTED; securefda.errors may not be imported yet


if __name__ == "__main__":
    sys.exit(main())
