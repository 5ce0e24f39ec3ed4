"""Processes of tests that start some one by one."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from e2e_processes import Process


@pytest.fixture
def start() -> Iterator[Callable[[list[str]], Process]]:
    """Start a process from the arguments of its command; it is gone when the test ends."""
    started: list[Process] = []

    def begin(arguments: list[str]) -> Process:
        started.append(Process(arguments))
        return started[-1]

    yield begin
    for process in started:
        if process.process.poll() is None:
            process.kill()
