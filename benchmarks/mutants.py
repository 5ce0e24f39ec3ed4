"""Do the tests of a package notice when its code is wrong? Sixty small mistakes, each put into the code by itself.

    python benchmarks/mutants.py --measure --out FILE [--revision REV] [--jobs N]    test them, go on where FILE ends
    python benchmarks/mutants.py --out FILE                                          print the table from FILE
    python benchmarks/mutants.py --compare BEFORE AFTER    ends with 1 where AFTER kills less than BEFORE
    python benchmarks/mutants.py --draw [--seed S]         draw sixty anew, write mutants.json
    python benchmarks/mutants.py --redraw                  replace those whose code was changed

A mutant is killed when a test of its own package fails or hangs: a quick one, or else one of the deep tests. The result
says which of them. `mutants.json` keeps each as lines of code, so that the same sixty run at every revision that has
these lines. `mutators.py` says which mistakes there are.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import py_compile
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import asdict, dataclass
from pathlib import Path
from queue import SimpleQueue
from typing import Any
from xml.etree import ElementTree as ET

from mutators import PACKAGES, Mutant, draw, package_of
from studies import this_machine

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
MUTANTS = HERE / "mutants.json"
PER_PACKAGE, SEED = 10, 2026
REDRAW = "python benchmarks/mutants.py --redraw"

QUICK, DEEP = "quick", "deep"
KILLED, SURVIVED, INAPPLICABLE = "killed", "survived", "does not apply"
SLOWER = 3.0
"""A run, and a test, may take so many times what it took without a mutant, and ``GRACE_S`` more."""
GRACE_S = 60.0
_MEMORY = Path("/dev/shm")


def load(path: Path) -> list[Mutant]:
    """The mutants of a file."""
    return [Mutant(**row) for row in json.loads(path.read_text())["mutants"]]


def save(path: Path, mutants: Iterable[Mutant], seed: int) -> None:
    """Write them, with the seed that they were drawn with."""
    rows = [asdict(mutant) for mutant in mutants]
    path.write_text(json.dumps({"seed": seed, "mutants": rows}, indent=1, ensure_ascii=False) + "\n")


def drawn(root: Path, seed: int, old: Sequence[Mutant] = ()) -> list[Mutant]:
    """Ten mutants of each package of a tree, or as many as there were; the same seed draws the same.

    Old ones that still apply are kept.
    """
    mutants: list[Mutant] = []
    kept = [mutant for mutant in old if mutant.applies(root)]
    counts = Counter(mutant.package for mutant in old) if old else dict.fromkeys(PACKAGES, PER_PACKAGE)
    for package in PACKAGES:
        of_package = [mutant for mutant in kept if mutant.package == package]
        mutants += draw(root, package, counts[package], seed, of_package)
    return mutants


# --- a tree to put mutants into ---------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Run:
    """What a run of tests gave."""

    status: int | None
    """pytest's exit status; None where it ran out of time."""
    files: dict[str, float]
    """Seconds that the tests of each file took."""
    slowest_s: float
    """Seconds of the slowest test."""
    failed: list[str]


class Tree:
    """A copy of one revision, in which the tests of a package run with a mutant or without."""

    def __init__(self, revision: str, folder: Path) -> None:
        self.root, self._work = folder / "tree", folder / "work"
        self.root.mkdir(parents=True)
        self._process: subprocess.Popen[bytes] | None = None
        self._is_closed = False
        archive = subprocess.Popen(["git", "archive", revision], cwd=ROOT, stdout=subprocess.PIPE)
        subprocess.run(["tar", "-x"], cwd=self.root, stdin=archive.stdout, check=True)
        if archive.wait():
            raise SystemExit(f"error: git cannot read the files of {revision}")
        for path in (self.root / "securefda").rglob("*.py"):  # by their hash: a mutant is often as long as the original
            py_compile.compile(str(path), doraise=True, invalidation_mode=py_compile.PycInvalidationMode.CHECKED_HASH)

    def test(
        self,
        paths: Iterable[str],
        deselected: Iterable[str],
        *,
        depth: str = QUICK,
        test_s: float = 600,
        run_s: float = 3600,
    ) -> Run:
        """Run tests until one fails.

        Args:
            paths: files and folders, in this order.
            deselected: names of tests that are left out.
            depth: of the tests.
            test_s: seconds that one test may take.
            run_s: seconds that all may take.
        """
        shutil.rmtree(self._work, ignore_errors=True)
        self._work.mkdir()
        report = self._work / "report.xml"
        options = [
            "-x",
            "-q",
            "-p",
            "no:cacheprovider",
            "-p",
            "no:randomly",
            "-o",
            "addopts=",
            "-o",
            "junit_family=xunit1",
        ]
        options += ["-o", f"timeout={test_s:.0f}", "--hypothesis-seed=0"]
        options += [f"--basetemp={self._work / 'tmp'}", f"--junit-xml={report}"]
        options += [f"--deselect={name}" for name in deselected]
        environment = os.environ | {
            "PYTHONPATH": str(self.root),
            "OMP_NUM_THREADS": "1",
            "SECUREFDA_TEST_DEPTH": depth,
            "HYPOTHESIS_STORAGE_DIRECTORY": str(self._work / "hypothesis"),
        }
        command = [sys.executable, "-m", "pytest", *options, *paths]
        with (self._work / "output").open("w") as output:
            if self._is_closed:
                raise SystemExit("the run was ended")
            self._process = process = subprocess.Popen(
                command, cwd=self.root, env=environment, stdout=output, stderr=output, start_new_session=True
            )
            status: int | None
            try:
                status = process.wait(run_s)
            except subprocess.TimeoutExpired:
                status = None
            finally:
                self._end()  # what a test has started and not ended, too
                process.wait()
        files, slowest_s, failed = dict[str, float](), 0.0, list[str]()
        cases = ET.parse(report).iter("testcase") if report.exists() else []
        for case in cases:
            file = case.get("file", case.get("classname", "").replace(".", "/") + ".py")
            seconds = float(case.get("time", 0))
            files[file], slowest_s = files.get(file, 0.0) + seconds, max(slowest_s, seconds)
            if case.find("failure") is not None or case.find("error") is not None:
                failed.append(f"{file}::{case.get('name')}")
        return Run(status, files, slowest_s, failed)

    def close(self) -> None:
        """End the tests that run; no others begin."""
        self._is_closed = True
        self._end()

    def _end(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)

    def last_words(self) -> str:
        """The end of what the tests printed."""
        return "\n".join((self._work / "output").read_text(errors="replace").splitlines()[-30:])


def unmutated(tree: Tree, package: str, deselected: Iterable[str]) -> dict[str, Any]:
    """The tests of a package as they are: their files, quickest first, and how long it took. They must pass."""
    began = time.monotonic()
    run = tree.test([f"tests/{package}"], deselected)
    if run.status != 0:
        what = f"tests/{package} fails without any mutant: {', '.join(run.failed)}"
        raise SystemExit(f"{tree.last_words()}\nerror: {what}")
    took = {"seconds": round(time.monotonic() - began, 1), "slowest_test_s": round(run.slowest_s, 1)}
    files = {name: round(seconds, 2) for name, seconds in sorted(run.files.items(), key=lambda pair: pair[1])}
    return {"package": package, **took, "files": files}


def tested(tree: Tree, mutant: Mutant, clean: Mapping[str, Any], deselected: Iterable[str]) -> dict[str, Any]:
    """What the tests of its package make of one mutant; files that name its module run first."""
    path = tree.root / mutant.file
    original = path.read_text() if path.exists() else ""
    if (mutated := mutant.applied(original)) is None:
        return {"mutant": mutant.name, "outcome": INAPPLICABLE, "by": None, "seconds": 0.0}
    path.write_text(mutated)
    module = mutant.file.removesuffix(".py").replace("/", ".")
    files = sorted(
        clean["files"], key=lambda name: path.stem not in name and module not in (tree.root / name).read_text()
    )
    began = time.monotonic()
    test_s, run_s = (SLOWER * clean[name] + GRACE_S for name in ("slowest_test_s", "seconds"))
    depth = QUICK
    try:
        run = tree.test(files, deselected, test_s=test_s, run_s=run_s)
        if run.status == 0:
            depth = DEEP
            run = tree.test([f"tests/{mutant.package}"], deselected, depth=DEEP)
    finally:
        path.write_text(original)
    by = "out of time" if run.status is None else run.failed[0] if run.failed else "no test can run"
    outcome = {"outcome": SURVIVED, "by": None} if run.status == 0 else {"outcome": KILLED, "by": by, "depth": depth}
    return {"mutant": mutant.name, **outcome, "seconds": round(time.monotonic() - began, 1)}


# --- results ----------------------------------------------------------------------------------------------------------


def measure(given: argparse.Namespace) -> None:
    """Test the mutants that the file of results lacks; it is written after each."""
    revision = _git("rev-parse", "--verify", f"{given.revision}^{{commit}}")
    head = {"revision": revision, "deselected": sorted(given.deselect)}
    results: dict[str, Any] = {"machine": this_machine(), **head, "unmutated": [], "results": []}
    if given.out.exists():
        results = json.loads(given.out.read_text())
        if {name: results[name] for name in head} != head:
            raise SystemExit(f"error: {given.out} is of another revision or leaves other tests out: name another file")
    drawn_names = {mutant.name for mutant in load(given.mutants)}
    results["results"] = [row for row in results["results"] if row["mutant"] in drawn_names]  # others were replaced
    mutants = [mutant for mutant in load(given.mutants) if mutant.package in given.packages]
    known = {row["mutant"] for row in results["results"]}
    missing = [mutant for mutant in mutants if mutant.name not in known]
    clean = {row["package"]: row for row in results["unmutated"]}
    unknown = [name for name in PACKAGES if name not in clean and any(mutant.package == name for mutant in missing)]

    with (
        tempfile.TemporaryDirectory(dir=_MEMORY if _MEMORY.is_dir() else None) as folder,
        ThreadPoolExecutor(given.jobs) as pool,
    ):
        trees = [Tree(revision, Path(folder, str(number))) for number in range(given.jobs)]
        free = SimpleQueue[Tree]()
        for tree in trees:
            free.put(tree)

        def in_a_tree(what: Any, *arguments: Any) -> dict[str, Any]:
            tree = free.get()
            try:
                return what(tree, *arguments, given.deselect)
            finally:
                free.put(tree)

        try:
            for package, row in zip(unknown, pool.map(lambda name: in_a_tree(unmutated, name), unknown), strict=True):
                clean[package] = row
                results["unmutated"].append(row)
                _write(given.out, results)
                print(f"{package} unmutated: {row['seconds']} s", file=sys.stderr, flush=True)
            waiting = [pool.submit(in_a_tree, tested, mutant, clean[mutant.package]) for mutant in missing]
            for future in as_completed(waiting):
                result = future.result()
                results["results"].append(result)
                _write(given.out, results)
                by = f" by the {result['depth']} {result['by']}" if result["by"] else ""
                print(
                    f"{result['outcome']}{by}, {result['seconds']} s: {result['mutant']}", file=sys.stderr, flush=True
                )
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            for tree in trees:
                tree.close()
            raise


def _git(*arguments: str) -> str:
    return subprocess.run(["git", *arguments], cwd=ROOT, check=True, capture_output=True, text=True).stdout.strip()


def _write(path: Path, results: Mapping[str, Any]) -> None:
    unfinished = path.with_name(f"{path.name}.unfinished")
    unfinished.write_text(json.dumps(results, indent=1, ensure_ascii=False) + "\n")
    unfinished.replace(path)


def table(results: Mapping[str, Any]) -> str:
    """How many were killed of each package, as Markdown, then every mutant that no quick test killed, by name."""
    lines = [f"| package | {KILLED} | by the quick tests | {SURVIVED} | {INAPPLICABLE} |", "|---|---|---|---|---|"]
    outcomes = {row["package"]: Counter[str]() for row in results["unmutated"]}
    for row in results["results"]:
        counts = outcomes[package_of(row["mutant"].split(":")[0])]
        counts[row["outcome"]] += 1
        counts[QUICK] += row.get("depth") == QUICK
    for package, counts in outcomes.items():
        lines.append(
            f"| {package} | {' | '.join(str(counts[name]) for name in (KILLED, QUICK, SURVIVED, INAPPLICABLE))} |"
        )
    others = [
        f"{row['outcome']} by the deep {row['by']}: {row['mutant']}"
        if row["by"]
        else f"{row['outcome']}: {row['mutant']}"
        for row in results["results"]
        if row["outcome"] != KILLED or row.get("depth") == DEEP
    ]
    return "\n".join([*lines, "", *sorted(others)])


def compared(before: Mapping[str, Any], after: Mapping[str, Any]) -> tuple[list[str], list[str]]:
    """A line for each mutant that is killed no more, and for each that is killed newly."""
    outcomes = [{row["mutant"]: row["outcome"] for row in results["results"]} for results in (before, after)]
    lost = [
        f"LOST: killed before, now {outcomes[1].get(name, 'not measured')}: {name}"
        for name, outcome in outcomes[0].items()
        if outcome == KILLED != outcomes[1].get(name)
    ]
    won = [
        f"won: {outcomes[0].get(name, 'not measured')} before, now killed: {name}"
        for name, outcome in outcomes[1].items()
        if outcome == KILLED != outcomes[0].get(name)
    ]
    return lost, won


def main() -> int:
    """Do what is asked, one thing at a time."""
    given = _arguments()
    if given.draw:
        save(given.mutants, drawn(ROOT, given.seed), given.seed)
    elif given.redraw:
        seed = json.loads(given.mutants.read_text())["seed"]
        old = load(given.mutants)
        kept = [mutant for mutant in old if mutant.applies(ROOT)]
        save(given.mutants, drawn(ROOT, seed, old), seed)
        print("\n".join(f"replaced: {mutant.name}" for mutant in old if mutant not in kept))
    elif given.compare:
        lost, won = compared(*(json.loads(path.read_text()) for path in given.compare))
        print("\n".join([*lost, *won]) or "The same mutants are killed.")
        return 1 if lost else 0
    else:
        if given.measure:
            signal.signal(signal.SIGTERM, signal.default_int_handler)  # ends the tests that run, too
            measure(given)
        print(table(json.loads(given.out.read_text())))
    return 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--measure", action="store_true", help="test the mutants that FILE lacks first")
    what.add_argument("--compare", nargs=2, type=Path, metavar=("BEFORE", "AFTER"), help="two files of results")
    what.add_argument("--draw", action="store_true", help="draw all mutants anew")
    what.add_argument("--redraw", action="store_true", help="replace the mutants that no longer apply to the tree")
    parser.add_argument("--out", type=Path, metavar="FILE", help="the results, JSON")
    parser.add_argument("--revision", default="HEAD", metavar="REV", help="whose code and tests; default: HEAD")
    parser.add_argument("--jobs", type=int, default=1, help="mutants at the same time")
    parser.add_argument("--packages", nargs="+", default=list(PACKAGES), choices=list(PACKAGES), help="default: all")
    parser.add_argument("--deselect", action="append", default=[], metavar="TEST", help="a test that is left out")
    parser.add_argument("--mutants", type=Path, default=MUTANTS, help="the mutants, JSON")
    parser.add_argument("--seed", type=int, default=SEED, help="which mutants are drawn")
    given = parser.parse_args()
    if given.out is None and not (given.compare or given.draw or given.redraw):
        parser.error("name the file of results: --out FILE")
    return given


if __name__ == "__main__":
    sys.exit(main())
