"""The study of mutants: where a mistake can be put, that it is put there alone, and how two runs are compared."""

import ast
import json
import subprocess
import sys
from dataclasses import replace

import pytest
from benchmark_studies import BENCHMARKS, imported_study

ROOT = BENCHMARKS.parent


@pytest.fixture(scope="module")
def study():
    with imported_study("mutants") as module:
        yield module


@pytest.fixture(scope="module")
def mutations(study):
    return sys.modules["mutators"]


def mutated(mutations, folder, source):
    """Each mutation of a source: its operator, and the source with it."""
    path = folder / "securefda" / "privacy" / "code.py"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(source)
    found = [mutations.mutant_of(folder, path, edit) for edit in mutations.edits(path)]
    return [(mutant.operator, mutant.applied(source)) for mutant in found if mutant is not None]


# --- mistakes ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("x = a < b", [("opposite comparison", "x = a >= b"), ("moved boundary", "x = a <= b")]),
        ("x = a not in (b)", [("opposite comparison", "x = a in (b)")]),
        ("x = (a) and (b)", [("and for or", "x = (a) or (b)")]),
        ("x = not (a)", [("no negation", "x = (a)")]),
        ("x = 'é' if a else b", [("swapped alternatives", "x = b if a else 'é'")]),
        ("x -= y", [("other arithmetic", "x += y")]),
        ("x = min(a)", [("other function", "x = max(a)")]),
        ("f(a=True)", [("removed call", "pass"), ("other truth", "f(a=False)")]),
        ("x = 7", [("constant off by one", "x = 8"), ("constant off by one", "x = (6)")]),
        ("if a: raise E(1)", [("opposite condition", "if not (a): raise E(1)"), ("removed raise", "if a: pass")]),
        ("def f(): return a, b", [("swapped return", "def f(): return b, a")]),
        ("for x in y: continue", [("break for continue", "for x in y: break")]),
    ],
)
def test_a_mistake_is_put_in_one_place(mutations, tmp_path, line, expected):
    around = "# é\n{}\n# ende\n"
    assert mutated(mutations, tmp_path, around.format(line)) == [(name, around.format(text)) for name, text in expected]


DESCRIBES = '''
"""Text 1 < 2."""
Number = int | float
if TYPE_CHECKING:
    import a
@given(retries=3)
class Row(Base[1]):
    size: Literal[1] | None
    def __repr__(self):
        return "a" if self.size > 1 else "b"
def read(x: Literal[1] | None = None) -> Literal[2] | None:
    """Text."""
    if isinstance(x, int | None) is missing:
        raise Error(f"at most {1 + 2}", 3 < 4)
    text = f"{x + 1}" + "rest"
    return zip(text, x, strict=True)
'''


def test_texts_types_and_messages_are_not_mutated(mutations, tmp_path):
    operators = [operator for operator, _ in mutated(mutations, tmp_path, DESCRIBES)]
    assert operators == ["opposite comparison", "removed raise"]


def test_a_line_that_is_there_twice_is_mutated_where_it_was_meant(mutations, tmp_path):
    source = "def f():\n    return 1\n\n\ndef g():\n    return 1\n\n\nx = 0\nx = 0"
    sources = [text for _, text in mutated(mutations, tmp_path, source)]
    assert len(sources) == len(set(sources)) == 8
    assert all(sum(a != b for a, b in zip(text.split("\n"), source.split("\n"), strict=True)) == 1 for text in sources)


@pytest.mark.parametrize("source", ["y = a < b\n", "x = a < b\n\nx = a < b\n", "    x = a < b\n", ""])
def test_a_mutant_whose_lines_were_changed_does_not_apply(mutations, source):
    mutant = mutations.Mutant("securefda/privacy/code.py", "f", "moved boundary", ["x = a < b"], ["x = a <= b"])
    assert mutant.applied("x = a < b\n") == "x = a <= b\n"
    assert mutant.applied("import z\nx = a < b") == "import z\nx = a <= b"
    assert mutant.applied(source) is None


# --- the committed mutants --------------------------------------------------------------------------------------------


def test_the_committed_mutants_apply(study):
    gone = [mutant.name for mutant in study.load(study.MUTANTS) if not mutant.applies(ROOT)]
    assert not gone, (
        f"the code of {len(gone)} mutants was changed: replace them by `{study.REDRAW}`, commit mutants.json"
    )


def test_the_committed_mutants_are_sixty_different_programs(study):
    mutants = study.load(study.MUTANTS)
    assert {mutant.package for mutant in mutants} == set(study.PACKAGES)
    assert len({mutant.name for mutant in mutants}) == len(mutants) == 60
    for mutant in mutants:
        if mutant.applies(ROOT):
            source = (ROOT / mutant.file).read_text()
            assert ast.dump(ast.parse(mutant.applied(source))) != ast.dump(ast.parse(source)), mutant.name


def test_a_seed_draws_the_same_mutants(study, mutations):
    drawn = mutations.draw(ROOT, "site", 10, 1)
    assert drawn == mutations.draw(ROOT, "site", 10, 1) != mutations.draw(ROOT, "site", 10, 2)
    assert len({(mutant.file, mutant.scope) for mutant in drawn}) == 10


def test_a_redraw_replaces_what_no_longer_applies_alone(study, tmp_path, monkeypatch, capsys):
    path = tmp_path / "mutants.json"
    first, *others = study.load(study.MUTANTS)
    study.save(path, [replace(first, before=["no such line"]), *others], study.SEED)
    monkeypatch.setattr(sys, "argv", ["mutants.py", "--redraw", "--mutants", str(path)])
    kept = [mutant for mutant in others if mutant.applies(ROOT)]
    assert study.main() == 0
    assert "no such line" in capsys.readouterr().out
    redrawn = study.load(path)
    assert len(redrawn) == 60
    assert all(mutant in redrawn for mutant in kept)
    assert all(mutant.applies(ROOT) for mutant in redrawn)


# --- a run ------------------------------------------------------------------------------------------------------------


CODE = "def half(x):\n    return x / 2\n\n\ndef never():\n    return 5\n"
TESTS = "from securefda.privacy.code import half\n\n\ndef test_half():\n    assert half(4) == 2\n"
NO_PLUGINS = "def pytest_addoption(parser):\n    parser.addoption('--hypothesis-seed')\n"
"""pytest alone starts in a quarter of the time."""


def commit(root):
    git = ["git", "-c", "user.name=a", "-c", "user.email=a@example.org"]
    subprocess.run([*git, "add", "."], cwd=root, check=True)
    subprocess.run([*git, "commit", "-q", "-m", "all"], cwd=root, check=True)


@pytest.fixture
def repository(study, tmp_path, monkeypatch):
    """One package with one test, committed, and three mutants: one is noticed, one is not, one has no place."""
    root = tmp_path / "repository"
    for name, text in {
        "securefda/privacy/code.py": CODE,
        "tests/privacy/test_code.py": TESTS,
        "tests/conftest.py": NO_PLUGINS,
    }.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    subprocess.run(["git", "init", "-q"], cwd=root, check=True)
    commit(root)
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    mutants = [
        study.Mutant("securefda/privacy/code.py", "f", "one", ["    return x / 2"], ["    return x * 2"]),
        study.Mutant("securefda/privacy/code.py", "f", "two", ["    return 5"], ["    return 6"]),
        study.Mutant("securefda/privacy/code.py", "f", "three", ["    return 7"], ["    return 8"]),
    ]
    study.save(tmp_path / "mutants.json", mutants, 1)
    monkeypatch.setattr(study, "ROOT", root)
    return root


def run(study, folder, monkeypatch, *options):
    arguments = ["--measure", "--out", str(folder / "out.json"), "--mutants", str(folder / "mutants.json"), *options]
    monkeypatch.setattr(sys, "argv", ["mutants.py", *arguments])
    return study.main()


def test_a_run_says_which_mutants_are_killed_and_goes_on_where_it_was(study, repository, tmp_path, monkeypatch, capsys):
    assert run(study, tmp_path, monkeypatch) == 0
    assert "| privacy | 1 | 1 | 1 |" in capsys.readouterr().out
    results = json.loads((tmp_path / "out.json").read_text())
    assert {row["mutant"].split(": ")[2]: (row["outcome"], row["by"]) for row in results["results"]} == {
        "one": ("killed", "tests/privacy/test_code.py::test_half"),
        "two": ("survived", None),
        "three": ("does not apply", None),
    }
    assert (repository / "securefda/privacy/code.py").read_text() == CODE
    tested = study.tested
    monkeypatch.setattr(study, "tested", None)
    assert run(study, tmp_path, monkeypatch) == 0
    assert json.loads((tmp_path / "out.json").read_text()) == results
    study.save(tmp_path / "mutants.json", study.load(tmp_path / "mutants.json")[1:], 1)  # the first was replaced
    monkeypatch.setattr(study, "tested", tested)
    (tmp_path / "out.json").write_text(json.dumps(results | {"results": results["results"][:1]}))
    assert run(study, tmp_path, monkeypatch) == 0
    assert "| privacy | 0 | 1 | 1 |" in capsys.readouterr().out
    with pytest.raises(SystemExit, match="leaves other tests out"):
        run(study, tmp_path, monkeypatch, "--deselect", "tests/privacy/test_code.py::test_half")


def test_tests_that_fail_without_a_mutant_end_the_run(study, repository, tmp_path, monkeypatch):
    (repository / "tests/privacy/test_code.py").write_text("def test_wrong():\n    assert False\n")
    commit(repository)
    with pytest.raises(SystemExit, match="fails without any mutant"):
        run(study, tmp_path, monkeypatch)
    assert not (tmp_path / "out.json").exists()


# --- two runs ---------------------------------------------------------------------------------------------------------


def results(**outcomes):
    return {"results": [{"mutant": name, "outcome": outcome.replace("_", " ")} for name, outcome in outcomes.items()]}


@pytest.mark.parametrize(
    ("before", "after", "status", "said"),
    [
        ({"a": "killed", "b": "survived"}, {"a": "killed", "b": "survived"}, 0, ["The same mutants are killed."]),
        ({"a": "killed"}, {"a": "survived"}, 1, ["LOST: killed before, now survived: a"]),
        ({"a": "killed"}, {"a": "does not apply"}, 1, ["LOST: killed before, now does not apply: a"]),
        ({"a": "killed"}, {}, 1, ["LOST: killed before, now not measured: a"]),
        ({"a": "survived"}, {"a": "killed"}, 0, ["won: survived before, now killed: a"]),
        ({"a": "survived"}, {}, 0, ["The same mutants are killed."]),
    ],
)
def test_a_comparison_names_what_is_lost_and_won(study, tmp_path, monkeypatch, capsys, before, after, status, said):
    for name, outcomes in {"before": before, "after": after}.items():
        (tmp_path / name).write_text(json.dumps(results(**outcomes)))
    monkeypatch.setattr(sys, "argv", ["mutants.py", "--compare", str(tmp_path / "before"), str(tmp_path / "after")])
    assert study.main() == status
    assert capsys.readouterr().out.splitlines() == said


def test_a_run_without_a_file_of_results_is_refused(study, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["mutants.py", "--measure"])
    with pytest.raises(SystemExit, match="2"):
        study.main()
    assert "name the file of results: --out FILE" in capsys.readouterr().err
