"""The mutants: where a mistake can be put, that it is put there alone, and that the committed ones apply."""

import ast
import sys

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
