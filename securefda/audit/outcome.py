"""What an audit command came to: data for programs, text for people, and the error with which it ends, if it does."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from securefda.errors import SecureFdaError


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a command says.

    Attributes:
        data: for programs.
        text: for people; empty where the error says all.
        error: what is wrong; None where nothing is.
    """

    data: Mapping[str, Any]
    text: str
    error: SecureFdaError | None = None
