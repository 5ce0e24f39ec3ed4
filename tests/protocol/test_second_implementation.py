"""A second implementation, written from the specification, gives the published sessions byte for byte."""

from __future__ import annotations

import ast
import itertools
import math
from functools import cache
from pathlib import Path
from typing import Any

import ml_kem_oracle
import pytest
import secagg_oracles
import second_implementation
from published import every_session, load, session
from second_implementation import Replica

SESSIONS = [record["name"] for record in every_session()]
CAPPED = [record["name"] for record in load("sessions")["valid"]]


@cache
def replica(name: str) -> Replica:
    lost = {(entry["type"], entry["from"]) for entry in session(name)["messages"] if not entry["arrives"]}
    return Replica(session(name), lambda kind, sender: (kind, sender) not in lost)


@pytest.mark.parametrize("module", [second_implementation, secagg_oracles, ml_kem_oracle])
def test_second_implementation_imports_nothing_of_the_library(module: Any) -> None:
    tree = ast.parse(Path(str(module.__file__)).read_text(encoding="utf-8"))
    froms = {node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    names = {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
    assert {name.split(".")[0] for name in froms | names} <= {
        "__future__",
        "collections",
        "cryptography",
        "dataclasses",
        "fractions",
        "hashlib",
        "hmac",
        "itertools",
        "math",
        "ml_kem_oracle",
        "random",
        "secagg_oracles",
        "struct",
        "typing",
    }


@pytest.mark.parametrize(("cases", "apart"), [("valid", False), ("invalid", True)])
def test_builds_part_from_those_that_the_library_parts_from(cases: str, apart: bool) -> None:
    record = load("builds")
    for case in record[cases]:
        found = second_implementation.is_of_another_build(bytes.fromhex(case["bytes"]), record["own"])
        assert found is apart, case["claim"]


@pytest.mark.parametrize("name", SESSIONS)
def test_every_message_of_a_session_is_the_published_one(name: str) -> None:
    assert replica(name).messages == session(name)["messages"]


@pytest.mark.parametrize("name", SESSIONS)
def test_every_transcript_hash_and_the_cohorts_are_the_published_ones(name: str) -> None:
    record, other = session(name), replica(name)
    for field in ("ctx", "ctx1", "ctx2", "survivors_digest", "sum_digest"):
        assert getattr(other, field).hex() == record[field], field
    assert other.ctx0.hex() == record.get("ctx0", "")
    assert other.ring == record.get("ring", other.u1)
    assert [other.cohorts, other.u3, other.dropped] == [record["cohorts"], record["survivors"], record["dropped"]]


@pytest.mark.parametrize("name", SESSIONS)
def test_every_key_share_and_seed_of_a_source_is_the_published_one(name: str) -> None:
    record, other = session(name), replica(name)
    for text, published in record["sources"].items():
        source = other.sources[int(text)]
        computed: dict[str, Any] = {
            "mask_private_key": source.mask_private.hex(),
            "mask_key": source.mask_key.hex(),
            "box_key": source.box_key.hex(),
            "self_mask_commitment": source.self_mask_commitment.hex(),
            "nonce_commitment": source.nonce_commitment.hex(),
        }
        if source.own in other.u1:
            dealt = other.shares[source.own].items()
            computed["shares"] = {str(i): {"master": a.hex(), "self_secret": b.hex()} for i, (a, b) in dealt}
            peers = [other.sources[peer] for peer in other.holders[source.own] if peer != source.own]
            computed["box_keys"] = {str(peer.own): source.sealing_key(peer, other.ctx1).hex() for peer in peers}
        if source.own in other.u2:
            peers = [other.sources[peer] for peer in other.masks_with(source.own) if peer != source.own]
            computed["self_seed"] = source.self_seed(other.ctx2).hex()
            computed["pair_seeds"] = {
                str(peer.own): source.pair_seed(peer, other.ctx1, other.ctx2).hex() for peer in peers
            }
            reals = [float.fromhex(x) for x in (*published["input"], *published["statistics"])]
            rounding = bytes.fromhex(published["rounding"])
            computed["encoded"] = other.terms.to_bytes(other.terms.encode(reals, rounding)).hex()
            computed["masked"] = other.inputs[source.own].hex()
        if source.report and source.own in other.u1:
            computed["report_commitment"] = source.report_commitment(other.ctx1).hex()
        given = {"random", "report", "norms", "input", "statistics", "rounding"}
        assert computed == {field: value for field, value in published.items() if field not in given}
        assert source.rest == []


@pytest.mark.parametrize("name", SESSIONS)
def test_every_sum_is_that_of_the_survivors_inputs_and_the_published_one(name: str) -> None:
    record, other = session(name), replica(name)
    assert len(other.sums) == len(record["sums"])
    for words, published in zip(other.sums, record["sums"], strict=True):
        clear = [bytes.fromhex(record["sources"][str(own)]["encoded"]) for own in published["survivors"]]
        columns = zip(*map(other.terms.from_bytes, clear), strict=True)
        assert words == [sum(column) % 2**width for column, width in zip(columns, other.terms.widths, strict=True)]
        assert other.terms.to_bytes(words).hex() == published["words"]
        assert [x.hex() for x in other.terms.decode(words)] == [*published["vector"], *published["statistics"]]


def grid_of(record: Any) -> list[tuple[int, float]]:
    """Size and limit of each number of a norm report."""
    layers = record["header_fields"]["layers"]
    pairs = [(math.prod(layer["shape"]), layer["clip"]) for layer in layers]
    if record["header_fields"]["norm_cap"]["granularity"] == 1:
        return [(size, clip * math.sqrt(size)) for size, clip in pairs]
    return [(sum(size for size, _ in pairs), math.sqrt(sum(size * clip**2 for size, clip in pairs)))]


def norms_reported(record: Any) -> dict[int, list[float]]:
    """What the norm reports of those say whose shares arrived."""
    came = {entry["from"] for entry in record["messages"] if entry["type"] == "ShareBundle" and entry["arrives"]}
    codes = {int(own): bytes.fromhex(fields["report"]) for own, fields in record["sources"].items()}
    return {
        own: [second_implementation.norm_cap_of(code, *of) for code, of in zip(report, grid_of(record), strict=True)]
        for own, report in codes.items()
        if report and own in came
    }


@pytest.mark.parametrize("name", CAPPED)
def test_caps_are_the_largest_under_which_no_source_dwarfs_the_others(name: str) -> None:
    record, terms = session(name), session(name)["header_fields"]["norm_cap"]
    columns = list(zip(*norms_reported(record).values(), strict=True))
    assert len(record["caps"]) == len(columns)
    for text, column in zip(record["caps"], columns, strict=True):
        cap = secagg_oracles.largest_cap(list(column), terms["kappa"], terms["others"])
        assert float.fromhex(text) == pytest.approx(float(cap), rel=1e-12)


@pytest.mark.parametrize("name", CAPPED)
def test_reports_say_the_norms_rounded_down_by_less_than_a_step(name: str) -> None:
    record = session(name)
    for own, report in norms_reported(record).items():
        norms = [float.fromhex(text) for text in record["sources"][str(own)]["norms"]]
        for reported, norm, (size, _) in zip(report, norms, grid_of(record), strict=True):
            assert reported <= norm < reported * 2 ** (1 / 2 if size < 256 else 1 / 4)


@pytest.mark.parametrize("name", CAPPED)
def test_input_of_every_source_of_the_sum_is_within_its_norms_and_the_caps(name: str) -> None:
    record = session(name)
    sizes = [math.prod(layer["shape"]) for layer in record["header_fields"]["layers"]]
    caps = [float.fromhex(text) for text in record["caps"]]
    for own in norms_reported(record):
        if "input" not in record["sources"][str(own)]:
            continue
        own_norms = [float.fromhex(text) for text in record["sources"][str(own)]["norms"]]
        numbers = [float.fromhex(text) for text in record["sources"][str(own)]["input"]]
        ends = list(itertools.accumulate(sizes if len(own_norms) > 1 else [sum(sizes)]))
        parts = [numbers[start:end] for start, end in zip([0, *ends], ends, strict=False)]
        assert [math.hypot(*part) for part in parts] == pytest.approx(list(map(min, own_norms, caps)), rel=1e-6)


def test_sessions_cover_caps_that_bind_and_caps_that_do_not() -> None:
    binding = set()
    for record in load("sessions")["valid"]:
        caps = [float.fromhex(text) for text in record["caps"]]
        for fields in record["sources"].values():
            norms = [float.fromhex(text) for text in fields.get("norms", ())]
            binding |= {cap < norm for cap, norm in zip(caps, norms, strict=False)}
    assert binding == {True, False}


def test_sessions_cover_all_widths_cohorts_and_a_loss_in_every_phase() -> None:
    headers = [record["header_fields"] for record in load("sessions")["valid"]]
    assert {header["modulus_bits"] for header in headers} == {16, 20, 24, 32}
    assert {tuple(sorted(set(header["levels"]))) for header in headers} == {(2,), (3,), (2, 3), (1, 2, 3)}
    assert {header["norm_cap"]["granularity"] for header in headers if header["norm_cap"]} == {1, 2}
    assert None in [header["norm_cap"] for header in headers]
    lost = {
        entry["type"] for record in load("sessions")["valid"] for entry in record["messages"] if not entry["arrives"]
    }
    assert lost == {"Advertise", "ShareBundle", "MaskedInput", "SurvivorSignature", "Unmask"}
    given_up = session("seven-given-up")
    arrived = {entry["from"] for entry in given_up["messages"] if entry["type"] == "MaskedInput" and entry["arrives"]}
    assert arrived > set(given_up["survivors"])


@pytest.mark.parametrize("case", load("ring_graphs")["thresholds"], ids=str)
def test_least_threshold_is_the_published_one(case: dict[str, int]) -> None:
    given = {name: case[name] for name in ("n", "fewest", "colluders", "silent")}
    assert second_implementation.least_shares(case["degree"], **given) == case["least"]


@pytest.mark.parametrize("case", [record for record in load("ring_graphs")["graphs"] if record["n"] <= 1000], ids=str)
def test_smallest_graph_is_the_published_one(case: dict[str, Any]) -> None:
    given = {name: case[name] for name in ("n", "fewest", "colluders", "dropouts")}
    graph = second_implementation.least_graph(**given, silent=2)
    assert graph == (None if case["graph"] is None else case["graph"][:2])


@pytest.mark.parametrize("case", load("ring_graphs")["rings"], ids=lambda case: str(case["order"]))
def test_ring_is_the_published_one(case: dict[str, Any]) -> None:
    order = second_implementation.stand(map(int, case["holders"]), bytes.fromhex(case["ctx1"]))
    assert order == case["order"]
    neighbours = {own: second_implementation.neighbours_in(order, int(own), case["degree"]) for own in case["holders"]}
    assert neighbours == case["holders"]
