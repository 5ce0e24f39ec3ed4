"""Classes and functions of a notebook become a module, and what cannot be written is refused by name."""

from __future__ import annotations

import importlib
import itertools
import linecache
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from api_rows import SOURCES, data, linear, rows

import securefda
from securefda.api.user_task import write_task
from securefda.api.written_code import Sources
from securefda.tasks import Task, load_task, rows_of

_numbers = itertools.count()


def notebook(source: str, **names: Any) -> dict[str, Any]:
    """The names of a notebook that has run this cell."""
    file = f"<cell of a test {next(_numbers)}>"
    linecache.cache[file] = (len(source), None, source.splitlines(keepends=True), file)
    found = {"__name__": "__main__", **names}
    exec(compile(source, file, "exec"), found)
    return found


def written(source: str, name: str, **names: Any) -> str:
    """The module with one class or function of a notebook."""
    sources = Sources()
    sources.add(notebook(source, **names)[name])
    return sources.text("A module.")


NET = '''
import math
import torch.nn.functional as F
from torch import nn, relu as positive
from torch import Tensor

WIDTHS = (2, 4)
unused = object()


def scale(rows, by=math.e):
    return positive(rows) / by


class Base(nn.Module):
    """The layers."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(*WIDTHS), nn.Linear(WIDTHS[1], 2)


class Net(Base):
    @torch.no_grad()
    def unused(self, unused):
        return unused

    def forward(self, rows: Tensor) -> Tensor:
        return self.last(scale(F.elu(self.first(rows))))
'''


def test_a_class_is_written_with_all_that_it_uses_and_nothing_else() -> None:
    text = written(NET, "Net", torch=torch)
    assert text.splitlines()[2:8] == [
        "from torch import Tensor",
        "from torch import relu as positive",
        "import math",
        "import torch",
        "import torch.nn as nn",
        "import torch.nn.functional as F",
    ]
    assert [line for line in text.splitlines() if line[:1].isalpha()][6:] == [
        "class Base(nn.Module):",
        "WIDTHS = (2, 4)",
        "def scale(rows, by=math.e):",
        "class Net(Base):",
    ] or text.index("WIDTHS =") < text.index("class Base") < text.index("class Net")
    assert "unused = object()" not in text


def test_the_written_class_is_the_same_model() -> None:
    found: dict[str, Any] = {}
    exec(written(NET, "Net", torch=torch), found)
    torch.manual_seed(0)
    here = notebook(NET, torch=torch)["Net"]()
    torch.manual_seed(0)
    there = found["Net"]()
    given = torch.randn(3, 2)
    assert torch.equal(here(given), there(given))


def test_of_a_class_that_was_defined_twice_the_later_is_written() -> None:
    text = written("class One:\n    def f(self): return 1\n\nclass One:\n    def f(self): return 2\n", "One")
    assert "return 2" in text
    assert "return 1" not in text


def test_functions_that_call_each_other_are_both_written() -> None:
    text = written("def even(n): return n == 0 or odd(n - 1)\n\ndef odd(n): return n > 0 and even(n - 1)\n", "even")
    found: dict[str, Any] = {}
    exec(text, found)
    assert found["even"](4)
    assert not found["even"](3)


def test_a_function_of_a_module_is_imported_and_not_copied() -> None:
    sources = Sources()
    assert sources.add(torch.nn.functional.cross_entropy) == "cross_entropy"
    assert sources.text("x").splitlines()[-1] == "from torch.nn.functional import cross_entropy"


@pytest.mark.parametrize(
    ("source", "why"),
    [
        ("f = lambda: 1", "a lambda: has no name, so no process can import it"),
        (
            "import numpy\ntable = numpy.ones(3)\ndef f(): return table",
            "f: uses table, a ndarray that cannot be written",
        ),
        ("def f(): return nowhere", "f: uses nowhere, which is not defined"),
        ("def g():\n    def f(): pass\n    return f\nf = g()", "f: was defined inside a function"),
        ("class f: pass", "f: has no source that can be read"),
        (
            "import functools\nf = functools.partial(print, 1)",
            "partial: is a partial, and neither a class nor a function",
        ),
        ("bound = float('nan')\ndef f(): return bound", "f: uses bound, a float that cannot be written as source"),
    ],
)
def test_what_cannot_be_written_is_refused_by_name(source: str, why: str) -> None:
    with pytest.raises(securefda.ConfigError) as caught:
        written(source, "f")
    assert why in str(caught.value)
    assert caught.value.hint


def test_what_an_interactive_session_defines_has_no_source() -> None:
    found = {"__name__": "__main__"}
    exec("def f(): pass", found)
    with pytest.raises(securefda.ConfigError, match="f: has no source that can be read"):
        Sources().add(found["f"])


def loaded(task: type[Task], folder: Path, monkeypatch: pytest.MonkeyPatch) -> Task:
    """The task as a process of the run has it."""
    factory, folders, _ = write_task(task, folder, "clinic", SOURCES)
    monkeypatch.setattr(sys, "path", [*sys.path, *map(str, folders)])
    importlib.invalidate_caches()
    return load_task(factory, securefda.TaskSettings(target="clinic", sources=SOURCES, data_dir=folder))


@pytest.mark.parametrize("form", [lambda x: x, lambda x: {"a": x[:, :1], "b": x}, lambda x: (x[:, :1], x)])
def test_a_process_reads_the_rows_that_were_given(form: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    net = notebook("from torch import nn\ndef net(): return nn.Linear(2, 2)\n")["net"]
    given = {site: (form(x), y) for site, (x, y) in data().items()}
    task = securefda.task_from(net, given, (form(rows(seed=9)[0]), rows(seed=9)[1]))
    here = task(securefda.TaskSettings(target="clinic", sources=SOURCES))
    there = loaded(task, tmp_path, monkeypatch)
    for site, split in (("clinic", "train"), ("clinic", "test"), ("a", "train")):
        own, read = rows_of(here, site, split), rows_of(there, site, split)  # type: ignore[call-overload]
        assert [tensor.tolist() for tensor in own.tensors] == [tensor.tolist() for tensor in read.tensors]
        assert type(own.features) is type(read.features)
    assert there.test_data("a") is None
    assert (tmp_path / "a.train.safetensors").stat().st_mode & 0o777 == 0o600
    assert {file.suffix for file in tmp_path.iterdir()} <= {".py", ".safetensors", ""}


def test_rows_of_other_sites_of_the_data_are_not_written(tmp_path: Path) -> None:
    net = notebook("from torch import nn\ndef net(): return nn.Linear(2, 2)\n")["net"]
    task = securefda.task_from(net, data() | {"elsewhere": rows(), "../up": rows()}, rows())
    write_task(task, tmp_path / "task", "clinic", ("a",))
    assert {file.name for file in tmp_path.rglob("*.safetensors")} == {
        "clinic.train.safetensors",
        "clinic.test.safetensors",
        "a.train.safetensors",
    }


def test_names_columns_and_loss_reach_the_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = notebook(
        "from torch import nn\n"
        "def net(): return nn.Linear(2, 2)\n"
        "def twice(o, y): return 2 * nn.functional.cross_entropy(o, y)\n"
    )
    x, y = rows(6)
    labels = np.where(y == 1, "yes", "no")
    task = securefda.task_from(
        found["net"], {"clinic": (x, labels), "a": (x, labels)}, (x, labels), loss=found["twice"], separate_rows=True
    )
    there = loaded(task, tmp_path, monkeypatch)
    outputs, numbers = torch.tensor(x).float(), torch.tensor(y)
    assert there.class_names() == ("no", "yes")
    assert there.separate_rows
    assert there.loss(outputs, numbers).item() == pytest.approx(
        2 * torch.nn.functional.cross_entropy(outputs, numbers).item()
    )


def test_a_module_as_it_is_cannot_be_written(tmp_path: Path) -> None:
    task = securefda.task_from(linear(), data(), rows())
    with pytest.raises(securefda.ConfigError, match="model: is a module as it is") as caught:
        write_task(task, tmp_path, "clinic", SOURCES)
    assert "def make_model()" in caught.value.hint
    assert list(tmp_path.iterdir()) == []
