import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from securefda.errors import ConfigError, DataError
from securefda.tasks import Samples, TaskSettings, load_task

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
SETTINGS = TaskSettings("target", ("source-1", "source-2"))


@pytest.fixture
def folder_of_modules(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    before = set(sys.modules)
    yield tmp_path
    for name in set(sys.modules) - before:
        del sys.modules[name]


@pytest.mark.parametrize(
    "factory",
    [
        "",
        "digits",
        "securefda.tasks.digits",
        "securefda.tasks.digits:",
        ":Digits",
        "a b:Digits",
        "a.:B",
        "a:b.c",
        "a:b:c",
    ],
)
def test_factory_of_another_form_is_refused(factory):
    with pytest.raises(ConfigError, match=r"^task.factory: .* is not of the form package.module:Class"):
        load_task(factory, SETTINGS)


def test_missing_module_is_named_with_a_hint():
    where = r"^task.factory: there is no module no_such_package.tasks, installed or in the current folder /"
    with pytest.raises(ConfigError, match=where) as caught:
        load_task("no_such_package.tasks:Task", SETTINGS)
    assert "PYTHONPATH" in caught.value.hint


OWN_TASK = """
from beside import Base

class Own(Base):
    pass
"""
BESIDE = "from securefda.tasks.digits import Digits as Base\n"


@pytest.fixture
def current_folder(tmp_path, monkeypatch):
    """A current folder that is on no path, as for the installed command."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [entry for entry in sys.path if entry not in ("", ".")])
    yield tmp_path
    for name in ("own_task", "beside"):
        sys.modules.pop(name, None)


class TestCurrentFolder:
    def test_a_module_in_it_is_found_and_what_lies_beside_it(self, current_folder):
        (current_folder / "own_task.py").write_text(OWN_TASK)
        (current_folder / "beside.py").write_text(BESIDE)
        assert type(load_task("own_task:Own", SETTINGS)).__module__ == "own_task"
        assert sys.path[-1] == str(current_folder)

    def test_it_stands_in_for_no_module_that_is_there(self, tmp_path):
        marker = tmp_path / "was-run"
        names = ("numpy", "torch", "opacus", "securefda", "json", "ssl", "grpc", "pydantic", "csv")
        for name in names:
            (tmp_path / f"{name}.py").write_text(f"open({str(marker)!r}, 'w')\n")
        (tmp_path / "own_task.py").write_text(OWN_TASK)
        (tmp_path / "beside.py").write_text(BESIDE)
        program = (
            "from securefda.tasks import TaskSettings, load_task; import sys\n"
            "load_task('own_task:Own', TaskSettings('target', ('a',)))\n"
            "import csv, json, ssl, securefda.privacy.private_training\n"
            "import securefda.settings, securefda.transport.aggregator_server\n"
            f"print([name for name in {names} if sys.modules[name].__file__.startswith({str(tmp_path)!r})])"
        )
        done = subprocess.run(
            [sys.executable, "-P", "-c", program],
            cwd=tmp_path,
            env=os.environ | {"PYTHONPATH": str(EXAMPLES.parent)},
            capture_output=True,
            text=True,
            check=True,
        )
        assert done.stdout == "[]\n"
        assert not marker.exists()

    def test_a_task_that_is_installed_leaves_the_path_as_it_is(self, current_folder):
        before = list(sys.path)
        load_task("securefda.tasks.digits:Digits", SETTINGS)
        assert sys.path == before

    def test_one_that_all_users_may_write_to_is_not_taken(self, current_folder):
        (current_folder / "own_task.py").write_text(OWN_TASK)
        current_folder.chmod(0o1777)
        with pytest.raises(ConfigError, match="there is no module own_task") as caught:
            load_task("own_task:Own", SETTINGS)
        assert "every user may write" in caught.value.hint
        assert "own_task" not in sys.modules


def test_module_whose_own_import_is_missing_names_that_import(folder_of_modules):
    (folder_of_modules / "needs_more.py").write_text("import no_such_dependency\n")
    with pytest.raises(ConfigError, match="module needs_more needs no_such_dependency, not installed") as caught:
        load_task("needs_more:Task", SETTINGS)
    assert caught.value.hint == "install no_such_dependency"


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("class Broken(:\n", "SyntaxError"),
        ("missing_name\n", "NameError"),
        ("int('x')\n", "ValueError: invalid literal"),
    ],
)
def test_module_that_breaks_on_import_is_one_clear_error(folder_of_modules, text, reason):
    (folder_of_modules / "breaks.py").write_text(text)
    with pytest.raises(ConfigError, match=f"module breaks cannot be imported: {reason}"):
        load_task("breaks:Task", SETTINGS)


def test_missing_class_is_named():
    with pytest.raises(ConfigError, match=r"module securefda.tasks.digits has no Letters$"):
        load_task("securefda.tasks.digits:Letters", SETTINGS)


@pytest.mark.parametrize("name", ["load_task", "TaskSettings"])
def test_something_else_than_a_task_is_refused(name):
    with pytest.raises(ConfigError, match=r"is not a subclass of securefda\.tasks\.Task$"):
        load_task(f"securefda.tasks.base:{name}", SETTINGS)


def test_unfinished_task_names_what_it_lacks(folder_of_modules):
    (folder_of_modules / "half.py").write_text(
        "from securefda.tasks import Task\nclass Half(Task):\n    def model(self): ...\n    def loss(self, o, l): ...\n"
    )
    with pytest.raises(ConfigError, match="half:Half does not define metrics, test_data, train_data"):
        load_task("half:Half", SETTINGS)


def test_example_of_an_own_task_loads_and_moves_the_target(monkeypatch):
    monkeypatch.syspath_prepend(EXAMPLES)
    task = load_task("custom_task:Blobs", TaskSettings("target", ("source-1",), options={"shift": 4.0}))
    assert len(task.train_data("target")) == 20
    assert len(task.train_data("source-1")) == 200
    shift = task.test_data("target").features.mean(dim=0) - task.test_data("source-1").features.mean(dim=0)
    assert shift[0] == pytest.approx(4.0, abs=0.5)
    assert len(task.oracle_data()) == 20
    assert task.model()(task.train_data("target").features).shape == (20, 3)


def test_settings_refuse_a_federation_without_sources():
    with pytest.raises(ConfigError, match="at least one source"):
        TaskSettings("target", ())


@pytest.mark.parametrize("sources", [("a", "a"), ("a", "target")])
def test_settings_refuse_a_site_named_twice(sources):
    with pytest.raises(ConfigError, match="named twice"):
        TaskSettings("target", sources)


def test_settings_cannot_be_changed_through_the_mapping_given():
    options = {"noise": 0.1}
    settings = TaskSettings("target", ("a",), options=options)
    options["noise"] = 9.0
    assert settings.number("noise", 0.0, low=0.0, high=1.0) == 0.1


def test_unknown_option_names_the_nearest_one():
    settings = TaskSettings("target", ("a",), options={"nois": 0.1})
    with pytest.raises(ConfigError, match=r"^task.options.nois: unknown option$") as caught:
        settings.reject_unknown_options("noise", "target-rows")
    assert caught.value.hint == "did you mean noise?"


@pytest.mark.parametrize("value", [-0.1, 1.1, float("nan"), "0.5", True, None])
def test_number_outside_its_bounds_or_of_another_type_is_refused(value):
    settings = TaskSettings("target", ("a",), options={"noise": value})
    with pytest.raises(ConfigError, match=r"^task.options.noise: "):
        settings.number("noise", 0.5, low=0.0, high=1.0)


@pytest.mark.parametrize("value", [0, 11, 5.0, "5", False])
def test_count_outside_its_bounds_or_of_another_type_is_refused(value):
    settings = TaskSettings("target", ("a",), options={"rows": value})
    with pytest.raises(ConfigError, match=r"^task.options.rows: "):
        settings.count("rows", 5, low=1, high=10)


def test_choice_outside_the_list_is_refused():
    settings = TaskSettings("target", ("a",), options={"shift": "flip"})
    with pytest.raises(ConfigError, match="'flip' is not one of mirror, rotate"):
        settings.choice("shift", "mirror", ("mirror", "rotate"))


@pytest.mark.parametrize(
    ("features", "labels", "reason"),
    [
        (torch.zeros(3, 2), torch.zeros(2), "3 rows of features but 2 labels"),
        (torch.zeros(0, 2), torch.zeros(0), "a site has no rows"),
        (torch.tensor([[0.0, float("nan")]]), torch.zeros(1), "NaN or infinite"),
        (torch.tensor([[0.0, float("inf")]]), torch.zeros(1), "NaN or infinite"),
    ],
)
def test_unfit_rows_are_refused(features, labels, reason):
    with pytest.raises(DataError, match=reason):
        Samples(features, labels)
