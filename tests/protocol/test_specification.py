"""The pages that specify the protocols say what the code does: names, labels, numbers and sizes cannot drift apart."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from published import session
from second_implementation import index, labelled

from securefda.aggregator.run import CLOSING_S
from securefda.audit.log_records import MAX_INTEGER
from securefda.audit.signed_notes import LogName, witness_name
from securefda.audit.witness import MOST_SHOWN
from securefda.protocol import agreement, encoding, hybrid, messages, roster, shamir
from securefda.protocol.graph import CORRECTNESS_BITS, DEFAULT_SILENT, SECURITY_BITS, smallest_graph
from securefda.protocol.messages import (
    Advertise,
    Body,
    Consistency,
    DeliveredBox,
    Granularity,
    KeyAgreement,
    KeyList,
    MaskedInput,
    Result,
    SelfMaskShare,
    ShareBox,
    ShareBundle,
    ShareDelivery,
    Signed,
    SourcesKeep,
    Step,
    Survivor,
    Survivors,
    SurvivorSignature,
    Unmask,
    Visibility,
)
from securefda.rules.norm_caps import SMALL_LAYER
from securefda.source.standing import MOST_BROKEN_IN_A_ROW
from securefda.transport import wire
from securefda.v1 import messages_pb2 as pb

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "threat_model" / "sfda-sa-1.md").read_text(encoding="utf-8")
RINGS = (ROOT / "threat_model" / "sfda-sa-2.md").read_text(encoding="utf-8")
"""The page of SFDA-SA/2."""
PACKAGES = ("protocol", "source", "aggregator", "audit", "site", "transport")
NAME = re.compile(r"[A-Z]+(_[A-Z]+)*")
NOT_CHECKS = {"Z", "LOG", "T", "B", "BOUND", "GRPC_SSL_CIPHER_SUITES", "GRPC_VERBOSITY", "NFKC", "NONE", "Q", "TLS"} | {
    *("CREDENTIALS_DIRECTORY", "SECUREFDA_PASSPHRASE_FD"),
}
"""Strings in these packages that look like names of checks: formats, SQL, settings of libraries, variables of the
environment, a site's own notes."""


def section(title: str, page: str = PAGE) -> str:
    """The text of a section, from its heading to the next of its level."""
    return page.split(f"\n## {title}")[1].split("\n## ", maxsplit=1)[0]


def first_cells(title: str, page: str = PAGE) -> list[str]:
    """What stands in code style in the first column of a section's tables."""
    return re.findall(r"^\| `([^`]+)` \|", section(title, page), flags=re.MULTILINE)


def nodes_of(package: str) -> Iterator[ast.AST]:
    """Of all files, but for the lists of what a module exports."""
    for path in sorted((ROOT / "securefda" / package).glob("*.py")):
        for statement in ast.parse(path.read_text(encoding="utf-8")).body:
            if not (isinstance(statement, ast.Assign) and ast.unparse(statement.targets[0]) == "__all__"):
                yield from ast.walk(statement)


def test_every_check_of_the_code_is_in_the_tables_and_no_other() -> None:
    constants = [node for package in PACKAGES for node in nodes_of(package) if isinstance(node, ast.Constant)]
    in_code = {node.value for node in constants if isinstance(node.value, str) and NAME.fullmatch(node.value)}
    assert in_code >= NOT_CHECKS
    of_all, of_rings = first_cells("12. Every check"), first_cells("6. Every check", RINGS)
    assert {*of_all, *of_rings} == in_code - NOT_CHECKS
    assert not set(of_all) & set(of_rings)


def test_every_name_that_a_page_uses_is_in_the_tables() -> None:
    of_all, of_rings = set(first_cells("12. Every check")), set(first_cells("6. Every check", RINGS))
    used = {
        page: {name for name in re.findall(r"`([A-Z]+(?:_[A-Z]+)*)`", page) if len(name) > 1} for page in (PAGE, RINGS)
    }
    assert used[PAGE] == of_all
    assert of_rings < used[RINGS] <= of_all | of_rings


def test_header_checks_are_in_both_tables_in_one_order() -> None:
    in_order = [name for name in first_cells("6. Header") if name.startswith("HEADER") or name == "RELEASE_FUSE"]
    listed = [name for name in first_cells("12. Every check") if name in in_order]
    assert listed == in_order


def test_every_label_is_in_the_table_and_has_one_use() -> None:
    calls = [node for node in nodes_of("protocol") if isinstance(node, ast.Call)]
    used = [node.args[0] for node in calls if getattr(node.func, "id", "") == "labelled_digest"]
    digests = [str(node.value) for node in used if isinstance(node, ast.Constant)]
    assert len(digests) == len(used)
    listed = [label for page in (PAGE, RINGS) for label in first_cells("4. Labels and transcript hashes", page)]
    assert sorted(listed) == sorted([*digests, *(label.value.decode() for label in agreement.Label)])
    assert len(set(listed)) == len(listed)


def numbered(first: str, page: str = PAGE) -> dict[str, int]:
    """Names and numbers of the table whose first row begins with ``first``; a row may hold several of both."""
    lines = page.splitlines()
    start = next(place for place, line in enumerate(lines) if re.match(rf"\| {first}[ ,]", line))
    listed: dict[str, int] = {}
    for line in lines[start:]:
        if not line.startswith("|"):
            break
        names, numbers = (cell.strip().split(", ") for cell in line.split("|")[1:3])
        listed.update({name: int(number) for name, number in zip(names, numbers, strict=True)})
    return listed


@pytest.mark.parametrize(
    ("page", "first", "message"),
    [
        (PAGE, "run_id", pb.Header),
        (PAGE, "mask_key", pb.Advertise),
        (PAGE, "sum_digest", pb.Result),
        (RINGS, "degree", pb.GraphTerms),
        (RINGS.split("| Roll | number |")[1], "members", pb.Roll),
        (RINGS.split("| Neighbours | number |")[1], "members", pb.Neighbours),
    ],
    ids=["Header", "Advertise", "Result", "GraphTerms", "Roll", "Neighbours"],
)
def test_fields_have_the_numbers_of_the_schema(page: str, first: str, message: Any) -> None:
    assert numbered(first, page) == {field.name: field.number for field in message.DESCRIPTOR.fields}


def test_fields_that_differ_have_the_numbers_of_the_schema() -> None:
    assert [(field.name, field.number) for field in pb.Nonce.DESCRIPTOR.fields] == [("nonce", 1)]
    consistency, near = (kind.DESCRIPTOR.fields for kind in (pb.Consistency, pb.NeighbourConsistency))
    assert [(field.name, field.number) for field in near] == [(field.name, field.number) for field in consistency]
    assert pb.ShareDelivery.DESCRIPTOR.fields_by_name["members"].number == 2


def test_envelope_and_bodies_have_the_numbers_of_the_schema() -> None:
    by_name = pb.Envelope.DESCRIPTOR.fields_by_name
    bodies = {kind.__name__: by_name[field].number for kind, field in wire.BODY_FIELDS.items()}
    assert numbered("Header") | numbered("Roll", section("3. Messages", RINGS)) == bodies
    for name in ("suite", "session_id", "sender", "context"):
        assert f"| {name} | {by_name[name].number} |" in PAGE


@pytest.mark.parametrize(
    "message",
    [pb.Abort, pb.Refusal, pb.Join, pb.Checkpoint, pb.Cosigned, pb.Goodbye, pb.Update],
    ids=lambda enum: enum.__name__,
)
def test_fields_of_messages_around_a_session_have_the_numbers_of_the_schema(message: Any) -> None:
    (row,) = re.findall(rf"^\| {message.DESCRIPTOR.name} \| (.*?) \|", section("11. Aborts"), flags=re.MULTILINE)
    numbers = {name: int(number) for name, number in re.findall(r"([a-z_]+) \((\d+)", row)}
    assert numbers == {field.name: field.number for field in message.DESCRIPTOR.fields}


def test_enums_have_the_numbers_of_the_code() -> None:
    for enum in (Visibility, Granularity, SourcesKeep, KeyAgreement):
        assert ", ".join(f"{member.value} `{member.label}`" for member in enum) in PAGE
    steps = ", ".join(f"{step.value} {step.name.lower().replace('_', ' ')}" for step in Step)
    assert f"Steps of an Abort: {steps}." in " ".join(PAGE.split())


@pytest.mark.parametrize(
    "text",
    [
        f"at most {wire.MAX_ENVELOPE_BYTES} bytes ({wire.MAX_ENVELOPE_BYTES / 2**20:g} MiB)",
        f"have at most {roster.MAX_SITES} entries",
        f"list of 1 to {roster.MAX_SITES} entries",
        f"the layer table 1 to {wire.MAX_LAYERS}",
        f"a box has 1 to {messages.MAX_BOX_BYTES} bytes",
        f"in a layer of fewer than {SMALL_LAYER} parameters",
        f"a vector has m + {encoding.N_STATISTICS} elements",
        f"is not ⌈m·k / 8⌉ + {4 * encoding.N_STATISTICS}",
        f"The masked input itself has ⌈m·k / 8⌉ + {4 * encoding.N_STATISTICS} bytes",
        f"mean loss over the training rows / {encoding.LOSS_BOUND:g}",
        f"`source_only` / ({encoding.DISTANCE_BOUND:g} · mean_square)",
        f"at most {wire.MAX_SIDES} sides",
        f"A checkpoint has at most {messages.MAX_NOTE_BYTES} bytes ({messages.MAX_NOTE_BYTES // 1024} KiB)",
        f"a proof at most {messages.MAX_PROOF_HASHES} hashes",
        f"a cosignature 1 to {messages.MAX_LINE_CHARACTERS} characters",
        f"counts 2^{(MAX_INTEGER + 1).bit_length() - 1} records or more",
        f"no more than before, more than {MOST_SHOWN} times in a row",
        f"a source's Checkpoint, more than {MOST_SHOWN} times between",
        f"phase_deadline_ms, and not above {CLOSING_S:g} s",
        f"The log of a site is `{LogName('federation', 'site', 'run').origin}`",
        f"A witness is `{witness_name('federation', 'site')}` and cosigns",
        f"after {('no', 'one', 'two', 'three')[MOST_BROKEN_IN_A_ROW]} failed checks in a row it leaves the run",
        f"other names of the header 1 to {wire.MAX_NAME_BYTES}",
        f"a signature exactly {messages.SIGNATURE_BYTES}",
        f"Every roster index is below 2^{wire.MAX_INDEX.bit_length() - 1}",
        f"A box has {agreement.BOX_BYTES} bytes",
        f"Such a box has {agreement.BOX_BYTES + hybrid.FRONT_BYTES + hybrid.PAIR_SECRET_BYTES} + r bytes",
        f"32 + {hybrid.BOX_KEY_BYTES - 32} bytes",
        f"a ciphertext of {hybrid.CIPHERTEXT_BYTES} bytes",
        f"32 + 4 + 4 + {shamir.SHARE_BYTES} + {shamir.SHARE_BYTES} + r bytes",
        f"as {shamir.SHARE_BYTES} bytes, big-endian",
        f"p = 2^256 + {shamir.PRIME - 2**256}",
        f"t is at least {shamir.MINIMUM_THRESHOLD}",
        f"at most {roster.MAX_NUMBER})",
    ],
)
def test_numbers_are_those_of_the_code(text: str) -> None:
    assert text in " ".join(PAGE.split())


def test_example_of_the_cohorts_is_that_of_the_published_session() -> None:
    record, page = session("six-cohorts"), section("8. Cohorts")
    ctx1 = bytes.fromhex(record["ctx1"])
    nonces = {int(own): bytes.fromhex(fields["random"][3]) for own, fields in record["sources"].items()}
    key = labelled("cohort-key", ctx1, *(index(own) + nonces[own] for own in sorted(nonces)))
    places = {own: labelled("cohort-place", key, index(own)) for own in nonces}
    order = ", ".join(f"{own} (`{places[own].hex()[:8]}`...)" for own in sorted(places, key=lambda own: places[own]))
    cohorts = ", ".join("{" + ", ".join(map(str, cohort)) + "}" for cohort in record["cohorts"])
    for cells in (
        f"| ctx1 | `{ctx1.hex()}` |",
        f"| K | `{key.hex()}` |",
        f"places | {order} |",
        f"| cohorts | {cohorts} |",
    ):
        assert cells in page


def sizes(n: int) -> dict[str, int]:
    """Bytes of the Envelope of each message in a session of sources 1 to n with target 0."""
    digest, everyone, box = bytes(range(1, 33)), range(1, n + 1), bytes(agreement.BOX_BYTES)

    def envelope(sender: int, body: Any) -> Signed[Any]:
        whole = messages.Envelope(digest, sender, digest, body)
        return Signed(whole, wire.encode(whole), bytes(messages.SIGNATURE_BYTES))

    advertise, signature = Advertise(digest, digest, digest, digest), SurvivorSignature(digest)
    masked = MaskedInput(digest, 4 * 1_100_007)
    bodies: list[tuple[int, Body]] = [
        (1, advertise),
        (0, KeyList(tuple(envelope(own, advertise) for own in everyone))),
        (1, ShareBundle(tuple(ShareBox(peer, box) for peer in everyone[1:]), digest, digest)),
        (0, ShareDelivery(tuple(DeliveredBox(peer, box, digest, digest) for peer in everyone[1:]))),
        (1, masked),
        (0, Survivors(tuple(Survivor(own, digest) for own in everyone), (), digest)),
        (1, signature),
        (0, Consistency(*(tuple(envelope(own, body) for own in everyone) for body in (signature, masked)))),
        (1, Unmask(tuple(SelfMaskShare(own, bytes(shamir.SHARE_BYTES)) for own in everyone))),
        (0, Result(digest, n, digest)),
    ]
    return {type(body).__name__: len(envelope(sender, body).signed_bytes) for sender, body in bodies}


def test_sizes_are_those_of_real_messages() -> None:
    by_n = {n: sizes(n) for n in (3, 10, 100)}
    for name in by_n[3]:
        assert f"| {name} | " + " | ".join(str(by_n[n][name]) for n in (3, 10, 100)) + " |" in PAGE


def anchors_of(page: str) -> set[str]:
    titles = re.findall(r"^#+ (.*)$", page, flags=re.MULTILINE)
    return {re.sub(r"[^a-z0-9 -]", "", title.lower()).replace(" ", "-") for title in titles}


@pytest.mark.parametrize("page", [PAGE, RINGS], ids=["SFDA-SA/1", "SFDA-SA/2"])
def test_links_lead_somewhere(page: str) -> None:
    targets = re.findall(r"\]\(([^)]+)\)", page)
    assert len(targets) > 10
    for target in targets:
        path, _, anchor = target.partition("#")
        assert not path or (ROOT / "threat_model" / path).exists(), target
        there = page if not path else (ROOT / "threat_model" / path).read_text(encoding="utf-8")
        assert not anchor or anchor in anchors_of(there), target


def test_graphs_in_the_table_are_those_of_the_calculator() -> None:
    rows = re.findall(r"^\| (\d+) \| (\d+) \| (\d+) \| (\d+) \| (\d+) \|$", RINGS, flags=re.MULTILINE)
    assert len(rows) > 5
    for row in rows:
        n, colluders, dropouts, degree, threshold = map(int, row)
        graph = smallest_graph(n, fewest=n - dropouts, colluders=colluders, dropouts=dropouts, silent=2)
        assert (graph and (graph.degree, graph.threshold)) == (degree, threshold), row


def test_bounds_in_the_page_are_those_of_the_code() -> None:
    assert f"bad(c) ≤ 2^-{SECURITY_BITS}" in RINGS
    assert f"n · P[Y > k - t_k] ≤ 2^-{CORRECTNESS_BITS}" in RINGS
    assert f"With t = n - D and s = {DEFAULT_SILENT}, where min_others asks for no more:" in RINGS
