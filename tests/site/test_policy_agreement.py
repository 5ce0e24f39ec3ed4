"""What people agreed to: who receives, who signed, which task; and a first policy that permits the plan alone."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from federation_builder import NOW

from securefda.errors import ConfigError, PolicyRefusal
from securefda.local.policy_check import headers_of_federation
from securefda.protocol.envelope import sign_bytes
from securefda.protocol.messages import SourcesKeep
from securefda.samples import sample
from securefda.site.config import FederationConfig, load_federation, site_policy
from securefda.site.kit import Kit, load_kit
from securefda.site.policy import (
    NAMED_POLICIES,
    Agreement,
    SourcePolicy,
    check_header_by_policy,
    check_task,
    default_policy_text,
    explain,
    in_brief,
    load_policy,
    load_signed_policy,
)
from securefda.site.policy.signed import SignedBy, with_person, write_policy_signature
from securefda.task_digest import columns_read, task_digest

ADA, BEN = SignedBy("Ada Lovelace", "head of cardiology", "2026-06-01"), SignedBy("Ben", "officer", "2026-06-02")


@pytest.fixture
def lyon(federation: Path) -> Kit:
    return load_kit(federation / "lyon", NOW)


def agree(kit: Kit, *people: SignedBy, **agreed: Any) -> SourcePolicy:
    """The site writes these terms into its policy and signs it, with these people."""
    file, policy = kit.local / "policy.toml", SourcePolicy(min_others=2, agreement=Agreement(**agreed))
    file.write_text(default_policy_text(kit.site_id, policy))
    write_policy_signature(file, file.read_bytes(), kit.federation_id, kit.site_id, kit.signing_key, people=people)
    return policy


@pytest.mark.parametrize(("required", "people"), [(0, ()), (1, (ADA,)), (2, (ADA, BEN))])
def test_a_policy_counts_once_as_many_people_have_signed_as_it_requires(
    lyon: Kit, required: int, people: tuple[SignedBy, ...]
) -> None:
    policy = agree(lyon, *people, signatures_required=required)
    assert load_signed_policy(lyon) == policy
    assert lyon.signers() == people
    agree(lyon, *people, signatures_required=required + 1)
    with pytest.raises(ConfigError, match=rf"and agreement\.signatures-required is {required + 1}") as caught:
        load_signed_policy(lyon)
    assert caught.value.key == str(lyon.local / "policy.sig")
    assert "--name NAME --role ROLE" in caught.value.hint
    assert lyon.signers() == people


def rewritten(lyon: Kit, people: object, *, signed: bool) -> None:
    """Another list of people in ``policy.sig``, under the site's key or under the signature that was there."""
    file = lyon.local / "policy.sig"
    envelope = json.loads(file.read_text())
    envelope["policy"] = json.dumps(json.loads(envelope["policy"]) | {"people": people}, sort_keys=True)
    if signed:
        envelope["site_signature"] = sign_bytes(lyon.signing_key, "Policy", envelope["policy"].encode()).hex()
    file.write_text(json.dumps(envelope))


ONE = {"name": "Ada", "role": "head", "day": "2026-06-01"}


@pytest.mark.parametrize(
    ("people", "signed", "why"),
    [
        ([ONE, ONE | {"name": "Ben"}], False, "is not by this site's present signing key"),
        ([ONE, ONE], True, "is no signature of a policy"),
        ([ONE, ONE | {"name": "a d a"}], True, "is no signature of a policy"),
        ([{"name": "Ada"}], True, "is no signature of a policy"),
        (["Ada", "Ben"], True, "is no signature of a policy"),
        ({"Ada": "Ben"}, True, "is no signature of a policy"),
        ([ONE | {"role": 3}], True, "is no signature of a policy"),
    ],
)
def test_people_whom_the_sites_key_did_not_name_or_named_twice_are_none(
    lyon: Kit, people: object, signed: bool, why: str
) -> None:
    agree(lyon, ADA, signatures_required=2)
    rewritten(lyon, people, signed=signed)
    with pytest.raises(ConfigError, match=why):
        load_signed_policy(lyon)


def test_two_people_whom_the_sites_key_names_are_enough(lyon: Kit) -> None:
    agree(lyon, ADA, signatures_required=2)
    rewritten(lyon, [ONE, ONE | {"name": "Ben"}], signed=True)
    assert load_signed_policy(lyon).agreement.signatures_required == 2


@pytest.mark.parametrize(
    ("name", "role", "key"),
    [
        ("", "officer", "--name"),
        (" \t ", "officer", "--name"),
        ("Ben", "", "--role"),
        ("B" * 121, "officer", "--name"),
        ("Ben\x1b[2J", "officer", "--name"),
        ("ada  lovelace", "officer", "--name"),
    ],
)
def test_a_person_signs_once_with_name_and_role(name: str, role: str, key: str) -> None:
    with pytest.raises(ConfigError) as caught:
        with_person((ADA,), name, role, "2026-06-02")
    assert caught.value.key == key
    assert caught.value.hint
    assert with_person((ADA,), " Ben", "officer", "2026-06-02") == (ADA, BEN)


def test_a_source_starts_only_for_the_organisation_that_is_to_receive(lyon: Kit) -> None:
    agree(lyon, recipient="Hospital of Geneva").session_limits(lyon.roster)
    other = agree(lyon, recipient="Insurance of Geneva")
    with pytest.raises(ConfigError, match="is Insurance of Geneva, and the roster's target geneva is of") as caught:
        other.session_limits(lyon.roster)
    assert caught.value.key == "agreement.recipient"


@pytest.mark.parametrize("last", ["2027-6-30", "30.06.2027", "2027-02-30", "tomorrow", "20270630"])
def test_what_is_no_day_is_refused_by_name(last: str, tmp_path: Path) -> None:
    for key, text in (("agreement.expires", "[agreement]\n"), ("dp.expires", "[dp]\n")):
        file = tmp_path / "policy.toml"
        file.write_text(f'{text}expires = "{last}"\n')
        with pytest.raises(ConfigError, match=f"{key}: must be a day such as"):
            load_policy(file)


# A task by digest


def test_the_digest_of_a_task_is_of_its_class_options_and_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    package = tmp_path / "hearts_of_lyon"
    package.mkdir()
    (package / "__init__.py").write_text("raise RuntimeError('a digest imports nothing')\n")
    (package / "task.py").write_text("class Hearts: ...\n")
    (tmp_path / "lone_heart.py").write_text("class Hearts: ...\n")
    inside, lone = "hearts_of_lyon.task:Hearts", "lone_heart:Hearts"
    asked = [(inside, {"a": 1.0}), (inside, {"a": 2.0}), (inside, {}), (lone, {}), ("lone_heart:Other", {})]
    digests = [task_digest(*one) for one in asked]
    assert len(set(digests)) == len(asked)
    assert digests == [task_digest(*one) for one in asked]
    monkeypatch.syspath_prepend(tmp_path)
    assert digests == [task_digest(*one) for one in asked]
    (package / "task.py").write_text("class Hearts: pass\n")
    (package / "__init__.py").write_text("")
    assert [task_digest(*one) != before for one, before in zip(asked, digests, strict=True)] == [True] * 3 + [False] * 2
    assert task_digest("not_installed_here:Task", {}) == ""


def test_the_columns_of_a_table_are_those_of_its_model_label_and_group() -> None:
    columns = {"age": {"type": "number"}, "name": {"type": "ignored"}, "sex": {"type": "category"}}
    label = {"column": "days", "event": "death"}
    assert columns_read({"columns": columns, "label": label, "group": "patient"}) == (
        *("age", "sex", "days", "death"),
        "patient",
    )
    assert columns_read({"size": 28}) == columns_read({"columns": "all"}) == ()


# The first policy permits the plan


def planned(*settings: str, name: str = "three_hospitals") -> tuple[FederationConfig, SourcePolicy]:
    config = load_federation(sample(name), list(settings))
    return config, site_policy(config, config.federation.sources[0])


@pytest.mark.parametrize(
    ("settings", "rules"),
    [
        ((), ("source_only", "fedda_auto")),
        (("strategy.rule=fedavg", "strategy.warm-up-rounds=0"), ("fedavg",)),
        (("strategy.rule=auto",), ("source_only", "fedgp_auto", "fedda_auto", "auto")),
        (("strategy.rule=target_only", "strategy.warm-up-rounds=0"), ()),
    ],
)
def test_the_first_policy_allows_the_rules_of_the_plan_and_no_other(
    settings: tuple[str, ...], rules: tuple[str, ...]
) -> None:
    assert set(planned(*settings)[1].allowed_rules) == set(rules)


def test_the_first_policy_permits_the_plan_and_refuses_one_step_more() -> None:
    config, policy = planned("strategy.rounds=16")
    asked = headers_of_federation(config, {})
    assert asked.refusals_by(policy, config.federation.sources[0]) == ()
    last, factory = asked.headers[-1], config.task.factory
    beyond = {
        "release.max-rounds": replace(last, round=17),
        "release.max-attempts": replace(last, attempt=config.session.attempts + 1),
        "limits.training-deadline-s-max": replace(last, training_deadline_ms=last.training_deadline_ms + 1),
        "limits.phase-deadline-s-max": replace(last, phase_deadline_ms=last.phase_deadline_ms + 1),
        "allowed-rules": replace(last, rule=replace(last.rule, rule="fedgp_auto")),
        "model.keep": replace(last, sources_keep=SourcesKeep.NONE),
    }
    for key, header in beyond.items():
        with pytest.raises(PolicyRefusal) as caught:
            check_header_by_policy(policy, header, 1)
        assert caught.value.key == key
    for other, options in ((f"{factory}2", {}), (factory, {"another": 1})):
        with pytest.raises(PolicyRefusal) as caught:
            check_task(policy, other, options)
        assert caught.value.key == "allowed-tasks"


@pytest.mark.parametrize(
    ("setting", "key", "bound"),
    [
        ("strategy.rounds=100000", "release.max-rounds", 10_000),
        ("training.target.learning-rate=100.0", "limits.learning-rate-max", 10.0),
        ("training.target.learning-rate=1e-9", "limits.learning-rate-min", 1e-5),
        ("transport.training-deadline-s=900000", "limits.training-deadline-s-max", 86_400.0),
    ],
)
def test_a_plan_beyond_what_policies_permit_by_default_widens_none(setting: str, key: str, bound: float) -> None:
    table, leaf = key.replace("-", "_").split(".")
    policy = planned(setting)[1]
    assert getattr(getattr(policy, table), leaf) == bound
    assert SourcePolicy.model_validate(policy.model_dump()) == policy


def test_what_a_policy_began_as_stands_in_it() -> None:
    assert planned()[1].agreement.template == "the planned run"
    assert {name: named.policy.agreement.template for name, named in NAMED_POLICIES.items()} == {
        name: name for name in NAMED_POLICIES
    }


def test_statements_and_checks_are_told_apart_in_words() -> None:
    agreed = Agreement(
        purpose="screening", recipient="Clinic", columns=("age",), expires="2027-06-30", keep_logs_days=9
    )
    policy = SourcePolicy(agreement=agreed, allowed_tasks=(f"my:Task@{'0' * 64}",))
    stated, checked = explain(policy, "lyon").agreed
    assert stated == (
        "Stated, and checked by no process: purpose: screening; days that logs are kept: 9. Not stated: legal basis, "
        "contract, authority, most rows of one person, days that models are kept, template."
    )
    for said in ("must be of Clinic", "no column but age", "options and code of my:Task", "after 2027-06-30"):
        assert said in checked
    assert explain(SourcePolicy(), "lyon").agreed[1] == "lyon checks none of it."
    assert dict(in_brief(policy))["why"] == "screening"
