"""Switches that take one mitigation away, so that a test can show that the attack then succeeds.

The code of the federation has no such switch: a switch replaces attributes of its modules for the time of a ``with``
block and puts them back. It works in a running test only, and only with a roster all of whose keys are published in
:mod:`threat_model.sites`: a real roster has keys that nobody published.

One switch is off at a time. An attack that wins with two mitigations off shows nothing of either, which may do nothing.

    with switched_off(checks_off("KEY_SIGNATURE"), roster=stage.roster):
        stage.play()
"""

from __future__ import annotations

import ast
import importlib
import os
import pkgutil
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import cache
from hashlib import sha256, shake_256
from inspect import getsource
from itertools import count
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import securefda.protocol
from securefda.audit.log import AuditLog
from securefda.errors import FaultyAggregatorError
from securefda.protocol import (
    agreement,
    encoding,
    envelope_checks,
    header_checks,
    masking,
    weighed_contribution,
)
from securefda.protocol import roster as roster_module
from securefda.protocol import source_session as source_steps
from securefda.protocol.masking import Mask, RingVector, add_masks
from securefda.protocol.messages import Unmask
from securefda.protocol.roster import Roster, SignedRoster
from securefda.protocol.secret import Secret
from securefda.rules import norm_caps
from securefda.site.policy import signed, verdict
from securefda.source import acceptance, model_bound
from securefda.source.run_book import RunBook
from securefda.source.source_site import SourceSite
from securefda.source.source_store import SourceStore
from securefda.state_file import ProcessGuard, ReleaseMarker
from securefda.training import seeds
from securefda.transport import limits
from threat_model.sites import published_public_keys

OUTSIDE = ("TYPE", "SENDER", "SESSION", "CONTEXT", "SIGNATURE")
"""The faults that :func:`securefda.protocol.envelope_checks.envelope_fault` can be made to overlook."""

_CODE = ("securefda.", "services.", "threat_model.adversaries.")


class SwitchRefused(Exception):
    """A mitigation can only be taken away alone, in a test, and on throwaway identities."""


@dataclass(frozen=True, slots=True)
class Replacement:
    """One attribute of a module or class, and its replacement while the switch is off."""

    owner: Any
    attribute: str
    value: Any


@dataclass(frozen=True, slots=True)
class Switch:
    """One mitigation: its name in words, and what to replace to take it away.

    ``replacements`` is called when the switch is thrown, since modules may be loaded after the switch is made.
    """

    mitigation: str
    replacements: Callable[[], list[Replacement]]


_off: list[Switch] = []
"""The switch that is off now."""


@contextmanager
def switched_off(switch: Switch, *, roster: Roster) -> Iterator[None]:
    """Take one mitigation away for the duration of a block, and put it back however the block ends.

    Raises:
        SwitchRefused: no test is running, the roster holds a key that is not a published one, or another mitigation is
            off. Nothing is changed.
        ValueError: the switch replaces something twice, so that one of its parts would stay on. Nothing is changed.
    """
    _refuse_outside_of_tests(roster)
    if _off:
        raise SwitchRefused(f"one mitigation at a time, and this one is off: {_off[0].mitigation}")
    replacements = switch.replacements()
    places = {(id(one.owner), one.attribute) for one in replacements}
    if len(places) < len(replacements):
        raise ValueError(f"{switch.mitigation}: one thing is replaced twice")
    with ExitStack() as put_back:
        _off.append(switch)
        put_back.callback(_off.clear)
        for replacement in replacements:
            put_back.callback(setattr, replacement.owner, replacement.attribute, _current(replacement))
            setattr(replacement.owner, replacement.attribute, replacement.value)
        yield


def _refuse_outside_of_tests(roster: Roster) -> None:
    if "PYTEST_CURRENT_TEST" not in os.environ or "pytest" not in sys.modules:
        raise SwitchRefused("mitigations are taken away by tests alone, and no test is running")
    unknown = [entry.site_id for entry in roster.entries if entry.signing_key not in published_public_keys()]
    if unknown:
        raise SwitchRefused(f"the keys of {', '.join(unknown)} are not throwaway keys of the stage")


def _current(replacement: Replacement) -> Any:
    """Return the present attribute, to be put back; a class attribute as it is, not bound or unwrapped."""
    holder = vars(replacement.owner)
    if replacement.attribute not in holder:
        raise ValueError(f"{replacement.owner!r} has no {replacement.attribute} of its own")
    return holder[replacement.attribute]


def replaced(mitigation: str, owner: ModuleType, name: str, wrap: Callable[[Any], Callable[..., Any]]) -> Switch:
    """Return a switch that replaces a function wherever a module of the federation knows ``name`` of ``owner``.

    ``wrap`` makes the stand-in of what stands there when the switch is thrown.

    Raises:
        ValueError: the module has no such function.
    """
    _current(Replacement(owner, name, None))

    def replacements() -> list[Replacement]:
        original = vars(owner)[name]
        stand_in = wrap(original)
        return [
            Replacement(module, attribute, stand_in)
            for module in _modules()
            for attribute, value in vars(module).items()
            if value is original
        ]

    return Switch(mitigation, replacements)


def method_replaced(mitigation: str, owner: type, name: str, stand_in: Any) -> Switch:
    """Return a switch that puts ``stand_in`` in place of a method of a class.

    Raises:
        ValueError: the class itself has no such method.
    """
    replacement = Replacement(owner, name, stand_in)
    _current(replacement)
    return Switch(mitigation, lambda: [replacement])


def all_of(mitigation: str, *switches: Switch) -> Switch:
    """Combine switches for one mitigation in several places; its docstring says why they are one."""
    return Switch(mitigation, lambda: [one for switch in switches for one in switch.replacements()])


def _modules() -> list[ModuleType]:
    """Return the modules of the federation, and of the attackers, who know it and run the same code."""
    names = sorted(name for name in sys.modules if name.startswith(_CODE))
    return [sys.modules[name] for name in names]


def checks_off(*names: str, mitigation: str = "") -> Switch:
    """Return a switch for the named checks of the session: those made with ``require``, as error vectors name them.

    ``mitigation`` says what several checks are together; a single one has its name.

    Raises:
        ValueError: the code has no such check, or several of them are no mitigation that has a name.
    """
    unknown = sorted(set(names) - names_of_checks())
    if unknown or not names:
        raise ValueError(f"no check is called {', '.join(unknown) or 'nothing'}")
    title = _one_mitigation(mitigation, "check", names)

    def wrap(original: Callable[[bool, str, str], None]) -> Callable[..., None]:
        return lambda condition, check, detail="": original(condition or check in names, check, detail)

    return replaced(title, envelope_checks, "require", wrap)


def _one_mitigation(mitigation: str, kind: str, names: Sequence[str]) -> str:
    if len(names) > 1 and not mitigation:
        raise ValueError(f"no mitigation is named that {' and '.join(names)} are together")
    return mitigation or f"{kind} {names[0]}"


@cache
def names_of_checks() -> frozenset[str]:
    """Return every name that the code gives to a condition it requires."""
    found: set[str] = set()
    for module in pkgutil.iter_modules(securefda.protocol.__path__, "securefda.protocol."):
        tree = ast.parse(getsource(importlib.import_module(module.name)))
        found |= {name for node in ast.walk(tree) for name in _names_required(node)}
    return frozenset(found)


def _names_required(node: ast.AST) -> list[str]:
    """Return the names of checks that a call passes to ``require``."""
    if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "require"):
        return []
    values = [item.value for item in node.args if isinstance(item, ast.Constant)]
    return [value for value in values if isinstance(value, str) and value.replace("_", "").isupper()]


def outside_off(*names: str, mitigation: str = "") -> Switch:
    """Return a switch with which no receiver checks the outside of messages in these respects.

    With SENDER off a message counts as that of the sender that it names, whose signature it must still have.
    ``mitigation`` as for :func:`checks_off`.

    Raises:
        ValueError: a name that is not in :data:`OUTSIDE`, or several that are no mitigation that has a name.
    """
    unknown = sorted(set(names) - set(OUTSIDE))
    if unknown or not names:
        raise ValueError(f"the outside of a message has no {', '.join(unknown) or 'nothing'}")
    title = _one_mitigation(mitigation, "outside of messages:", names)

    def wrap(original: Callable[..., str | None]) -> Callable[..., str | None]:
        def envelope_fault(signed: Any, **expected: Any) -> str | None:
            envelope = signed.envelope
            claimed: dict[str, tuple[str, Any]] = {
                "TYPE": ("kind", None),
                "SENDER": ("sender", envelope.sender),
                "SESSION": ("session_id", envelope.session_id),
                "CONTEXT": ("context", envelope.context),
            }
            fault = original(signed, **(expected | dict(claimed[name] for name in names if name in claimed)))
            return None if fault == "SIGNATURE" and fault in names else fault

        return envelope_fault

    return replaced(title, envelope_checks, "envelope_fault", wrap)


def _mask_without_self_mask(_: object) -> Callable[..., None]:
    def mask(vector: RingVector, *, own: int, pair_seeds: Mapping[int, Secret], threads: int = 1, **_: Secret) -> None:
        add_masks(vector, [Mask(seed, 1 if peer < own else -1) for peer, seed in pair_seeds.items()], threads=threads)

    return mask


SELF_MASK = replaced("the self mask", masking, "mask", _mask_without_self_mask)
"""Inputs are hidden by pairwise masks alone, as in the first protocol of Bonawitz et al. 2017, section 4."""

ONE_SHARE_PER_OWNER = method_replaced("one share per owner in an answer", Unmask, "__post_init__", lambda _: None)
"""An answer of R4 may hold both kinds of shares of one owner."""

ONE_KIND_PER_OWNER = all_of("one kind of share per owner", checks_off("SURVIVOR_OVERLAP"), ONE_SHARE_PER_OWNER)
"""A source gives both kinds of shares of an owner away that is in both lists.

It is one mitigation, in the question and in the answer: lists that overlap ask for an answer that the type forbids.
Either is enough.
"""

THRESHOLD_BOUND = replaced("2t > n + max_colluders", header_checks, "threshold_is_sound", lambda _: lambda *_: True)
"""Neither header check nor policy asks of the threshold that two views cannot both gather it."""

UNTRUSTED_AS_COLLUDERS = method_replaced(
    "sites that are not trusted count as colluders",
    header_checks.SessionLimits,
    "most_colluders",
    lambda limits, *_: limits.max_colluders,
)
"""A source assumes ``max-colluders`` sites on the aggregator's side, however many it does not trust."""

MEMBER_SIGNATURES = method_replaced("signatures of the members", SignedRoster, "missing_signatures", lambda _, __: ())
"""A roster counts as soon as the CA has signed it."""


def _read_unsigned(file: Path, *_: object) -> bytes:
    return file.read_bytes()


def _distinct_but_for_entities(original: Callable[..., None]) -> Callable[..., None]:
    return lambda what, pairs: None if what == "legal entity" else original(what, pairs)


ONE_SITE_PER_LEGAL_ENTITY = replaced(
    "one site per legal entity", roster_module, "_require_distinct", _distinct_but_for_entities
)
"""One organisation can have any number of sites."""

RELEASE_FUSE = method_replaced("the release fuse", SourceStore, "burn_fuse", lambda *_: None)
"""A source does not remember for which rounds an update has left."""

RUN_OF_THE_FOLDER = method_replaced("the run of the folder", SourceStore, "_other_run", lambda *_: None)
RUNS_OF_A_DAY = method_replaced("the limit on runs", RunBook, "_require_open", lambda *_: False)
ONE_RUN = all_of("one run", RUN_OF_THE_FOLDER, RUNS_OF_A_DAY)
"""A source takes part in any number of runs, one after another, with one folder. Its folder and the kit's book of runs
are each enough against that (T38)."""


def _of_any_run(original: Callable[..., Any]) -> Callable[..., Any]:
    def accept_header(site: SourceSite, header: Any, *came_with: Any) -> Any:
        of_header = SimpleNamespace(run=header.body.run_id.hex())
        witness: Any = SimpleNamespace(
            journal=of_header, check_previous_checkpoint=site.witness.check_previous_checkpoint
        )
        return original(replace(site, witness=witness), header, *came_with)

    return accept_header


RUN_OF_THE_CONNECTION = replaced("the run of the connection", acceptance, "accept_header", _of_any_run)
ONE_RUN_ON_A_CONNECTION = all_of("one run on a connection", ONE_RUN, RUN_OF_THE_CONNECTION)
"""Headers on one connection may name any number of runs. Folder, book and connection are each enough against that."""

POLICY = all_of(
    "the policy of the site",
    replaced("headers within the policy", verdict, "check_header_by_policy", lambda _: lambda *_, **__: None),
    replaced("updates within the policy", verdict, "check_metadata", lambda _: lambda *_: None),
)
"""A source does not compare headers, or its update in clear, with its policy; what the session checks it checks."""

POLICY_SIGNATURE = replaced(
    "the site's signature over its policy", signed, "read_signed_policy", lambda _: _read_unsigned
)
"""A site starts with whatever its policy file says."""

UPDATE_AT_THE_CLIP = replaced(
    "keeping back an update that is at its clip",
    weighed_contribution,
    "require_few_at_the_clip",
    lambda _: lambda *_: None,
)
"""A source clips and lets any number of coordinates be at the clip."""


class _Halves:
    """Draws that are all one half."""

    @staticmethod
    def update_into(zeros: memoryview, out: memoryview) -> None:
        out[:] = b"\x00\x80" * (len(zeros) // 2)


ROUNDING_AT_RANDOM = replaced(
    "rounding at random",
    encoding,
    "_encode_layer",
    lambda original: lambda *values, **how: original(*values, **(how | {"stream": _Halves})),
)
"""A source rounds to the nearest: what is below half a step vanishes."""

_NOTHING_CAPPED = weighed_contribution.AppliedCaps(0, sha256(b"").hexdigest(), 0, 0)
NORM_CAP = replaced(
    "scaling to the caps", weighed_contribution, "apply_caps", lambda _: lambda *_arguments: _NOTHING_CAPPED
)
"""Norm reports are exchanged, and no source scales its contribution down."""


def _with_bare_report(original: Callable[..., bytes]) -> Callable[..., bytes]:
    def seal_box(key: Secret, address: Any, shares: Any, random_bytes: Any, report: Secret | None = None) -> bytes:
        return original(key, address, shares, random_bytes) + (report.reveal() if report else b"")

    return seal_box


def _of_bare_report(original: Callable[..., Any]) -> Callable[..., Any]:
    def open_box(key: Secret, address: Any, box: bytes, report_bytes: int = 0) -> Any:
        shares, _ = original(key, address, box[: len(box) - report_bytes])
        return shares, Secret(box[-report_bytes:]) if report_bytes else None

    return open_box


SEALED_REPORTS = all_of(
    "sealing norm reports",
    replaced("sealing norm reports into boxes", agreement, "seal_box", _with_bare_report),
    replaced("opening boxes with norm reports", agreement, "open_box", _of_bare_report),
)
"""A norm report stands bare beside the sealed shares; its commitment and what is made of it stay as they are."""


def _counting_all(original: Callable[..., Any]) -> Callable[..., Any]:
    return lambda reports, *, kappa, others: original(reports, kappa=kappa, others=max(others, len(reports) - 1))


CAPS_ON_ITS_OWN_PART = replaced(
    "norm caps count a source's own part of its contribution",
    weighed_contribution,
    "contribute",
    lambda original: lambda *given, apart, **how: original(*given, apart=False, **how),  # noqa: ARG005 - as it is called
)
"""Norm caps also count the multiple of the target's own update that a source adds under auto-beta per layer."""

ONLY_THE_SMALLEST_COUNT = replaced("counting the smallest norms alone", norm_caps, "caps_for", _counting_all)
"""Whatever the header says, the norms of all other sources count, also of those that can be lost."""


INITIAL_MODEL = replaced("the task's own first model", model_bound, "require_initial", lambda _: lambda *_: None)
"""A run begins with whatever model the target sends."""

MODEL_STEP = method_replaced("the bound on a model's steps", model_bound.Course, "require_within", lambda *_: None)
"""A finished round moves the model to wherever the target likes."""


def _believing(original: Callable[..., Any]) -> Callable[..., Any]:
    def origin_of(header: Any, known: Any, missed: Any, **who: Any) -> Any:
        try:
            return original(header, known, missed, **who)
        except FaultyAggregatorError:
            return model_bound.Origin(max(known.number + 1, header.round - 1))

    return origin_of


MODEL_CHAIN = all_of(
    "that a model is that of a result",
    replaced("which result a model is that of", model_bound, "origin_of", _believing),
    checks_off("HEADER_CHAIN"),
)
"""A source takes any model, as that of a result that it has not heard of, one for each round that the header counts."""


def _answered(original: Callable[..., Any]) -> Callable[..., Any]:
    def origin_of(header: Any, known: Any, missed: Any, **who: Any) -> Any:
        accepted = known.accepted and replace(known.accepted, answered=model_bound.UNKNOWN_COUNT)
        return original(header, replace(known, accepted=accepted), missed, **who)

    return origin_of


ANSWERED_SESSION = replaced("that a result follows the last answer", model_bound, "origin_of", _answered)
"""A source takes a result of its last session however far that came."""


def _with_compression(original: Callable[..., list[tuple[str, int]]]) -> Callable[..., list[tuple[str, int]]]:
    refused = "grpc.compression_enabled_algorithms_bitset"
    return lambda settings: [option for option in original(settings) if option[0] != refused]


NO_COMPRESSION = replaced("no compression", limits, "_common_options", _with_compression)
"""Server and channel take what is compressed."""


ONLY_THE_ORIGINAL = ("refusal", "erasure", "log")
"""The measures against a copy of a process: it refuses to go on, its secrets are erased, and it writes into no log."""


def copied_process(but: str = "") -> Switch:
    """Return a switch with which a copy of a source's process keeps the secrets of the session and goes on with it.

    It is one mitigation, that only the original goes on, wherever a copy would need something of the original. Any one
    of the places is enough; the one that ``but`` names still stands.
    """
    places = (
        Replacement(ProcessGuard, "is_copy", property(lambda _: False)),
        Replacement(ProcessGuard, "_mark", lambda _: None),
        Replacement(AuditLog, "_require_no_fork", lambda _: None),
    )
    off = [place for name, place in zip(ONLY_THE_ORIGINAL, places, strict=True) if name != but]
    return Switch("that only the original goes on", lambda: off)


STATE_PUT_BACK = method_replaced("the count of releases beside the state", ReleaseMarker, "check", lambda *_: None)
"""A source starts with a state file that has forgotten what left, as after a snapshot of the disk was taken back."""


def _with_secrets_on_disk(original: Callable[..., Any]) -> Callable[..., Any]:
    """Return a step with secrets that are the same whenever the session begins again, as if read from disk."""

    def step(phase: Any, *received: Any) -> Any:
        session, numbers = getattr(phase, "session", phase), count()
        name = original.__name__.encode() + session.header.envelope.session_id + bytes([session.signer.index])
        again = [lambda length: shake_256(name + bytes([next(numbers)])).digest(length)]
        at = next(place for place, one in enumerate(received) if callable(one))
        return original(phase, *received[:at], *again, *received[at + 1 :])

    return step


SESSION_DIES = all_of(
    "secrets in memory alone",
    *(replaced("", source_steps, name, _with_secrets_on_disk) for name in ("advertise", "receive_key_list")),
)
"""A source keeps the secrets of a session on disk and finds them again after a crash: those of R0 and of R1."""


def _of_first_round(original: Callable[..., Any]) -> Callable[..., Any]:
    return lambda seed, site, run_id, _, *purpose: original(seed, site, run_id, 1, *purpose)


BATCHES_ANEW = replaced("batches drawn anew in each round", seeds, "round_seed", _of_first_round)
"""A source draws the same batches in every round."""
