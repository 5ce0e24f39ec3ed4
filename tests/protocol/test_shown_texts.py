"""What a peer writes and an operator reads is one printable line, so that no peer writes lines of a log."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from securefda.protocol.messages import Abort, Build, Goodbye, Refusal, Step

FORGED = "X failed; it accuses source-2"
WRITES: dict[str, Callable[[str], object]] = {
    "check": lambda text: Abort(Step.HEADER, text, None),
    "key": Refusal,
    "software_version": lambda text: Build(1, text, ()),
    "reason": lambda text: Goodbye(False, 1, text),
}


@pytest.mark.parametrize("field", WRITES)
@pytest.mark.parametrize("text", ["A\nB", "A\rB", "A\x1b[2K", "A\u202eB", "A\u2028B"])
def test_text_that_would_not_print_as_it_reads_is_refused(field: str, text: str) -> None:
    with pytest.raises(ValueError, match=field):
        WRITES[field](text)


@pytest.mark.parametrize("field", ["check", "key"])
def test_names_are_names_and_no_sentences(field: str) -> None:
    with pytest.raises(ValueError, match=field):
        WRITES[field](FORGED)


def test_what_people_read_may_hold_spaces_and_letters_of_any_script() -> None:
    assert Goodbye(False, 1, "Größe: 3 Quellen fehlen").reason
    assert Build(1, "0.1.0 (été)", ()).software_version
