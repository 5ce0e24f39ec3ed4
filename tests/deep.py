"""The deep run of the tests, and how old its last result is.

    python tests/deep.py            # what `make test-deep` does: run, write tests/deep.json, commit that file
    python tests/deep.py --check    # what `make lint` does: warn where the result is older than 30 commits

It runs every test with the long forms of fuzzing, mutations and studies, in an order drawn at random.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import secrets
import subprocess
import sys
import tempfile
import time
from datetime import UTC, datetime
from pathlib import Path
from xml.etree import ElementTree

REPOSITORY = Path(__file__).resolve().parents[1]
RESULT = REPOSITORY / "tests" / "deep.json"
MOST_COMMITS = 30
LONGEST_TEST_S = 3600


def git(*arguments: str) -> str:
    """What git answers. Raises CalledProcessError: this is no checkout, or git refuses."""
    command = ["git", "-C", str(REPOSITORY), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def run(arguments: list[str]) -> int:
    """Run all tests deeply; their exit code. The result is committed where the run was whole."""
    try:
        changes = git("status", "--porcelain", "--untracked-files=no")
    except (OSError, subprocess.CalledProcessError):
        print(f"error: {REPOSITORY} is no git checkout, and the result belongs to a commit", file=sys.stderr)
        print("hint: clone the repository", file=sys.stderr)
        return 4
    if changes:
        print("error: there are changes that are not committed, so that no commit has this result", file=sys.stderr)
        print("hint: commit them first", file=sys.stderr)
        return 4
    commit, began, seed = git("rev-parse", "HEAD"), time.monotonic(), secrets.randbelow(2**32)
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.xml"
        command = [sys.executable, "-m", "pytest", "-n", "auto", "--dist", "worksteal", "--durations", "10"]
        command += ["-p", "randomly", "--randomly-seed", str(seed), "--timeout", str(LONGEST_TEST_S)]
        environment = os.environ | {"SECUREFDA_TEST_DEPTH": "deep"}
        print(f"the order of the tests is that of --randomly-seed {seed}", flush=True)
        tests = subprocess.run(
            [*command, "--junit-xml", str(report), *arguments], cwd=REPOSITORY, env=environment, check=False
        )
        suites = list(ElementTree.parse(report).getroot().iter("testsuite")) if report.exists() else []
    counts = {
        kind: sum(int(suite.get(kind, 0)) for suite in suites) for kind in ("tests", "failures", "errors", "skipped")
    }
    failed = counts["failures"] + counts["errors"]
    result = {
        "commit": commit,
        "date": datetime.now(UTC).strftime("%Y-%m-%d"),
        "passed": counts["tests"] - failed - counts["skipped"],
        "failed": failed,
        "skipped": counts["skipped"],
        "minutes": round((time.monotonic() - began) / 60, 1),
        "random_order_seed": seed,
        "machine": f"{os.cpu_count()} cores, {platform.machine()}, Python {platform.python_version()}",
    }
    print(json.dumps(result, indent=1))
    if arguments or tests.returncode not in (0, 1):
        print("not kept: the run was narrowed, or broken off", file=sys.stderr)
        return tests.returncode
    RESULT.write_text(json.dumps(result, indent=1) + "\n")
    git("add", str(RESULT))
    git(
        "commit",
        "--quiet",
        "--message",
        f"Deep run of {commit[:7]}: {result['passed']} passed, {failed} failed",
        str(RESULT),
    )
    return tests.returncode


def check() -> int:
    """Warn where the last deep run failed or is old; it never fails, since the run takes an hour."""
    warning = _warning()
    if warning:
        print(f"warning: {warning}; run `make test-deep`", file=sys.stderr)
    return 0


def _warning() -> str:
    if not RESULT.exists():
        return "there is no result of a deep run"
    result = json.loads(RESULT.read_text())
    of = f"the last deep run, of {result['commit'][:7]} on {result['date']},"
    if result["failed"]:
        return f"{of} had {result['failed']} failed tests"
    try:
        behind = int(git("rev-list", "--count", f"{result['commit']}..HEAD"))
    except (OSError, subprocess.CalledProcessError):
        return f"{of} is of a commit that is not in this history"
    return f"{of} is {behind} commits old" if behind > MOST_COMMITS else ""


def main() -> int:
    """Run, or check."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="warn where the last result is old")
    given, arguments = parser.parse_known_args()
    return check() if given.check else run(arguments)


if __name__ == "__main__":
    sys.exit(main())
