"""A signed page is its maker's, to the last byte; anything else is refused, and nothing is said of it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from run_builder import KEYS, ROSTER, SOURCES

from securefda.audit.report.signature import MESSAGE, NotSigned, signed_page, verify_page
from securefda.errors import ExitCode
from securefda.protocol.envelope import sign_bytes

MAKER, OTHER = SOURCES[:2]
PAGE = b"<!doctype html><p>In order</p>"
SIGNED = signed_page(PAGE, "study", MAKER, KEYS[MAKER])


def judged(folder: Path, data: bytes, roster: bytes = ROSTER.canonical_bytes()) -> dict[str, object]:
    (folder / "roster.json").write_bytes(roster)
    (folder / "page.html").write_bytes(data)
    return dict(verify_page(folder / "page.html", folder / "roster.json").data)


def test_a_page_is_its_makers(tmp_path: Path) -> None:
    found = judged(tmp_path, SIGNED)
    assert (found["signed_by"], found["federation"]) == (MAKER, "study")
    assert SIGNED.startswith(PAGE)


REFUSED: dict[str, tuple[Callable[[bytes], bytes], str]] = {
    "not signed": (lambda _: PAGE, "does not end with the signature of a site"),
    "changed": (lambda data: data.replace(b"In order", b"In Order"), "was changed"),
    "something behind the signature": (lambda data: data + b"<p>", "does not end with"),
    "something before the signature": (lambda data: data.replace(b"\n<!-- signed", b"<p>\n<!-- signed"), "was changed"),
    "cut": (lambda data: data[:-5], "does not end with"),
    "another name over the same signature": (lambda data: data.replace(MAKER.encode(), OTHER.encode()), "did not sign"),
    "signed by another key": (lambda _: signed_page(PAGE, "study", MAKER, KEYS[OTHER]), "did not sign it"),
    "of another federation": (lambda _: signed_page(PAGE, "other", MAKER, KEYS[MAKER]), "which .* does not have"),
    "of no site": (lambda _: signed_page(PAGE, "study", "nobody", KEYS[MAKER]), "which .* does not have"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_another_page_is_refused(name: str, tmp_path: Path) -> None:
    change, why = REFUSED[name]
    with pytest.raises(NotSigned, match=why) as error:
        judged(tmp_path, change(SIGNED))
    assert error.value.exit_code == ExitCode.AUDIT


def test_a_signature_over_something_else_is_none_over_a_page() -> None:
    signed = SIGNED[: SIGNED.rindex(b": ") + 2]
    assert sign_bytes(KEYS[MAKER], MESSAGE, signed).hex().encode() in SIGNED
    assert sign_bytes(KEYS[MAKER], "Policy", signed).hex().encode() not in SIGNED
