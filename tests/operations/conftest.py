"""Tests here use the federation of the tests of rounds, and the processes of the tests from end to end."""

import sys
from pathlib import Path

_TESTS = Path(__file__).parents[1]
sys.path[:0] = [str(_TESTS / "rounds"), str(_TESTS / "end_to_end")]
