"""A mitigation is taken away in a test, on throwaway identities, for one block; nowhere else and no longer."""

from __future__ import annotations

import inspect
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from importlib import import_module
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from securefda.errors import FaultyAggregatorError
from securefda.protocol import envelope_checks, masking, source_session
from securefda.protocol.messages import SelfMaskShare, Unmask
from securefda.protocol.roster import Roster
from securefda.source import model_bound, source_site
from threat_model.sites import roster_of
from threat_model.switches import (
    ONE_SHARE_PER_OWNER,
    OUTSIDE,
    SELF_MASK,
    Replacement,
    Switch,
    SwitchRefused,
    all_of,
    checks_off,
    copied_process,
    method_replaced,
    names_of_checks,
    outside_off,
    replaced,
    switched_off,
)

pytestmark = pytest.mark.machinery

ROOT = Path(__file__).resolve().parents[2]
ROSTER = roster_of(5)
PARTS = [checks_off("KEY_SIGNATURE"), outside_off("SIGNATURE"), SELF_MASK, ONE_SHARE_PER_OWNER]
EVERYTHING = all_of("all that these tests look at", *PARTS)
_SCRIPT = """
from threat_model.sites import roster_of
from threat_model.switches import SwitchRefused, checks_off, switched_off
try:
    with switched_off(checks_off("KEY_SIGNATURE"), roster=roster_of(3)):
        print("off")
except SwitchRefused as refusal:
    print("refused:", refusal)
"""


def in_place() -> list[object]:
    """Return the present attribute in every place that the switches below replace."""
    return [
        envelope_checks.require,
        source_session.require,
        envelope_checks.envelope_fault,
        source_session.envelope_fault,
        source_site.envelope_fault,
        model_bound.envelope_fault,
        masking.mask,
        source_session.mask,
        vars(Unmask)["__post_init__"],
    ]


ORIGINAL = in_place()


def test_switch_is_refused_outside_of_a_test() -> None:
    environment = {name: value for name, value in os.environ.items() if name != "PYTEST_CURRENT_TEST"}
    ended = subprocess.run(
        [sys.executable, "-c", _SCRIPT], cwd=ROOT, env=environment, capture_output=True, text=True, check=True
    )
    assert ended.stdout.startswith("refused: mitigations are taken away by tests alone")


def test_switch_is_refused_with_one_key_that_is_not_published() -> None:
    real = Ed25519PrivateKey.generate().public_key().public_bytes_raw()
    entries = (*ROSTER.entries[:3], replace(ROSTER.entries[3], signing_key=real), *ROSTER.entries[4:])
    with (
        pytest.raises(SwitchRefused, match="keys of source-3"),
        switched_off(EVERYTHING, roster=Roster("stage", 1, entries)),
    ):
        pytest.fail("the switch was thrown")
    assert in_place() == ORIGINAL


def test_everything_is_put_back_after_the_block() -> None:
    with switched_off(EVERYTHING, roster=ROSTER):
        assert all(now is not then for now, then in zip(in_place(), ORIGINAL, strict=True))
    assert in_place() == ORIGINAL


def test_everything_is_put_back_after_an_exception() -> None:
    with pytest.raises(KeyError), switched_off(EVERYTHING, roster=ROSTER):
        raise KeyError
    assert in_place() == ORIGINAL


def test_what_was_replaced_is_put_back_where_the_rest_cannot_be() -> None:
    nowhere = Replacement(Unmask, "__pre_init__", None)
    broken = Switch("a half", lambda: [*EVERYTHING.replacements(), nowhere])
    with pytest.raises(ValueError, match="__pre_init__"), switched_off(broken, roster=ROSTER):
        pytest.fail("the switch was thrown")
    assert in_place() == ORIGINAL
    with switched_off(EVERYTHING, roster=ROSTER):
        assert in_place() != ORIGINAL


def test_switch_is_refused_while_another_mitigation_is_off() -> None:
    with switched_off(SELF_MASK, roster=ROSTER):
        before = in_place()
        with (
            pytest.raises(SwitchRefused, match="one mitigation at a time, and this one is off: the self mask"),
            switched_off(ONE_SHARE_PER_OWNER, roster=ROSTER),
        ):
            pytest.fail("the switch was thrown")
        assert in_place() == before
    with switched_off(ONE_SHARE_PER_OWNER, roster=ROSTER):
        assert in_place() != ORIGINAL


@pytest.mark.parametrize("switches", [(), (SELF_MASK, ONE_SHARE_PER_OWNER)], ids=len)
def test_switched_off_takes_exactly_one_mitigation(switches: tuple[Switch, ...]) -> None:
    with pytest.raises(TypeError):
        switched_off(*switches, roster=ROSTER)


def test_one_switch_that_replaces_something_twice_is_an_error() -> None:
    """The second part would stand in for the first one as well, which would stay on."""
    twice = all_of("two checks", checks_off("KEY_OWN"), checks_off("KEY_QUORUM"))
    with pytest.raises(ValueError, match="two checks: one thing is replaced twice"), switched_off(twice, roster=ROSTER):
        pytest.fail("the switch was thrown")
    assert in_place() == ORIGINAL


@pytest.mark.parametrize(
    "make",
    [
        lambda: checks_off("KEY_SIGNATUR"),
        checks_off,
        lambda: checks_off("KEY_OWN", "KEY_QUORUM"),
        lambda: outside_off("SUITE"),
        outside_off,
        lambda: outside_off("SESSION", "CONTEXT"),
        lambda: replaced("a mask", masking, "musk", lambda original: original),
        lambda: method_replaced("a check", Unmask, "__pre_init__", None),
    ],
    ids=["check", "no check", "two checks", "outside", "no outside", "two outsides", "function", "method"],
)
def test_switch_of_something_that_has_no_name_is_an_error(make: object) -> None:
    with pytest.raises(ValueError, match="no"):
        make()  # type: ignore[operator]


def every_switch() -> Iterator[Switch]:
    """Yield the switches of the threat model; those of a test's own are checked when it is imported."""
    for name in ("switches", "unbound", "unbounded", "unchecked_sums", "unwitnessed", "weak_masks", "without_noise"):
        module = vars(import_module(f"threat_model.{name}"))
        yield from (value for value in module.values() if isinstance(value, Switch))
    yield from (checks_off(name) for name in names_of_checks())
    yield from (outside_off(name) for name in OUTSIDE)
    yield copied_process()


def whole_call(function: Callable[..., object]) -> inspect.BoundArguments:
    """Return the call of a function that gives every parameter."""
    signature = inspect.signature(function)
    kinds = [(parameter.name, parameter.kind) for parameter in signature.parameters.values()]
    named = [name for name, kind in kinds if kind is inspect.Parameter.KEYWORD_ONLY]
    placed = [name for name, kind in kinds if kind is inspect.Parameter.POSITIONAL_OR_KEYWORD]
    return signature.bind(*placed, **dict.fromkeys(named))


def test_every_switch_finds_what_it_replaces_and_its_stand_in_takes_the_calls() -> None:
    """Deep tests alone throw most of them, and a name that is gone would be seen late."""
    tried = set()
    for switch in every_switch():
        replacements = switch.replacements()
        assert replacements, switch.mitigation
        for one in replacements:
            original = vars(one.owner)[one.attribute]
            assert callable(original) is callable(one.value), switch.mitigation
            if inspect.isfunction(original) and one.value is not original:
                tried.add(one.attribute)
                call = whole_call(original)
                inspect.signature(one.value).bind(*call.args, **call.kwargs)
    assert len(tried) > 20


def test_named_checks_alone_are_off() -> None:
    with switched_off(checks_off("KEY_OWN", "KEY_QUORUM", mitigation="the key list"), roster=ROSTER):
        source_session.require(False, "KEY_OWN", "a detail")
        source_session.require(False, "KEY_QUORUM")
        with pytest.raises(FaultyAggregatorError):
            source_session.require(False, "KEY_MEMBER")


def test_names_of_checks_are_those_of_the_error_vectors() -> None:
    assert {"HEADER_QUORUM", "SHARE_QUORUM", "KEY_SIGNATURE", "SURVIVOR_SELF", "CONSISTENCY_VIEW"} <= names_of_checks()
    assert not {"SIGNATURE", "SHARE_BOX", "KEY_INVALID"} & names_of_checks()  # these are made in another way


def test_one_answer_holds_both_kinds_of_shares_only_while_the_switch_is_off() -> None:
    twice = (SelfMaskShare(3, bytes(33)), SelfMaskShare(3, bytes(33)))
    with switched_off(ONE_SHARE_PER_OWNER, roster=ROSTER):
        Unmask(twice)
    with pytest.raises(ValueError, match="one share per owner"):
        Unmask(twice)
