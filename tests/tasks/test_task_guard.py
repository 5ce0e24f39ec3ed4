"""A task's own code may raise anything; what users and other sites get to read is one line."""

import pytest
import torch
from torch import nn

from securefda.errors import ConfigError, DataError, ExitCode
from securefda.tasks import TaskSettings, load_task, task_code
from securefda.tasks.digits import Digits
from securefda.training import TrainingSettings, build_model, evaluate, model_to_vector, train_local

SETTINGS = TaskSettings("target", ("source-1", "source-2"))
ONE_EPOCH = TrainingSettings(optimizer="sgd", learning_rate=0.1, batch_size=50, epochs=1)


class Odd(Digits):
    """Fails in its own code."""

    def metrics(self, outputs, labels):
        raise KeyError("row 17: diagnosis")


class Narrow(Digits):
    """Its model does not fit its data, which torch finds out."""

    def model(self):
        return nn.Linear(3, 10)


def test_an_error_in_the_tasks_code_names_the_place_and_keeps_its_words_to_this_site():
    task = Odd(SETTINGS)
    with pytest.raises(
        DataError, match=r"^task Odd: evaluation raised KeyError \(test_task_guard\.py, line \d+\)$"
    ) as caught:
        evaluate(task, build_model(task, 0), task.test_data("target"))
    assert "row 17" not in str(caught.value)
    assert "row 17: diagnosis" in caught.value.hint
    assert caught.value.exit_code is ExitCode.CONFIG


def test_a_model_that_does_not_fit_the_data_is_one_line():
    task = Narrow(SETTINGS)
    model = build_model(task, 0)
    with pytest.raises(DataError, match=r"^task Narrow: training raised RuntimeError \(linear\.py, line") as caught:
        train_local(
            task,
            model,
            model_to_vector(model),
            task.train_data("source-1"),
            settings=ONE_EPOCH,
            seed=0,
            site="source-1",
        )
    assert "shapes cannot be multiplied" in caught.value.hint


def test_a_model_that_cannot_be_built_is_one_line():
    class Unbuilt(Digits):
        def model(self):
            raise ZeroDivisionError

    with pytest.raises(DataError, match=r"^task Unbuilt: model raised ZeroDivisionError \(test_task_guard") as caught:
        build_model(Unbuilt(SETTINGS), 0)
    assert caught.value.hint == ""


def test_a_constructor_that_fails_is_one_line(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    lines = "from securefda.tasks.digits import Digits\nclass T(Digits):\n def __init__(self, settings):\n  [][1]\n"
    (tmp_path / "task_with_constructor.py").write_text(lines)
    with pytest.raises(DataError, match=r"T: its constructor raised IndexError \(task_with_constructor\.py, line 4\)"):
        load_task("task_with_constructor:T", SETTINGS)


def test_errors_that_are_clear_already_stay_as_they_are():
    with pytest.raises(ConfigError, match=r"^key: why$") as caught, task_code(Odd, "training"):
        raise ConfigError("key", "why", hint="do this")
    assert caught.value.hint == "do this"


def test_the_end_of_the_process_is_no_error_of_the_task():
    with pytest.raises(KeyboardInterrupt), task_code(Odd, "training"):
        raise KeyboardInterrupt


def test_random_numbers_are_restored_after_an_error():
    before = torch.random.get_rng_state()
    with pytest.raises(DataError):
        build_model(type("Failing", (Digits,), {"model": lambda self: torch.rand(3) and None})(SETTINGS), 0)
    assert torch.equal(torch.random.get_rng_state(), before)
