"""The state of a run that stays at a site between rounds: layers, running statistics, modules, released features."""

from __future__ import annotations

from typing import Protocol


class PersonalMemory(Protocol):
    """Keeps a site's own state across rounds and restarts. Each kind of state has a key, see :func:`state_keys`."""

    def personal(self, key: str, before: int) -> bytes | None:
        """Return the state of the last round below ``before``, None if there is none."""

    def keep_personal(self, key: str, round_number: int, state: bytes) -> None:
        """Keep the state of a round, and at least that of the last one below it."""


class NoMemory:
    """Keeps nothing, so that all state starts anew in each round."""

    def personal(self, key: str, before: int) -> None:
        """Return None: nothing was kept."""

    def keep_personal(self, key: str, round_number: int, state: bytes) -> None:
        """Discard the state."""


def own_layers_key(run_id: str) -> str:
    """Return the key of the layers or the model that a site trains for itself."""
    return run_id


def statistics_key(run_id: str) -> str:
    """Return the key of the running statistics of BatchNorm."""
    return f"{run_id} statistics"


def private_modules_key(run_id: str) -> str:
    """Return the key of the modules that a source trains beside the model, under rules that compare features."""
    return f"{run_id} alignment"


def released_features_key(run_id: str) -> str:
    """Return the key of the features with noise that a target released in a round, so that it releases them again."""
    return f"{run_id} features"


def folds_key(run_id: str) -> str:
    """Return the key of the models that a target compares by folds of its rows."""
    return f"{run_id} folds"


def state_keys(run_id: str) -> tuple[str, ...]:
    """Return all keys under which a source keeps its own state of a run."""
    return own_layers_key(run_id), statistics_key(run_id), private_modules_key(run_id)
