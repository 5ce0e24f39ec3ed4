"""``securefda policy`` and the policies in ``preflight``: what is permitted, what is refused and under which key."""

from __future__ import annotations

import json
import re
import shutil
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from stand_ins import Terminal

from securefda.aggregator.headers import expected_header
from securefda.cli import main
from securefda.protocol.header import NormCapTerms
from securefda.protocol.messages import NO_CONTEXT, Granularity, Result, Signer
from securefda.samples import sample
from securefda.site.config import load_federation
from securefda.site.kit import load_kit
from securefda.site.policy import (
    NAMED_POLICIES,
    DpPolicy,
    SourcePolicy,
    default_policy,
    load_policy,
    load_signed_policy,
    policy_text,
)
from securefda.transport.wire import encode, encode_signed

FEDERATION = str(sample("digits"))


@pytest.fixture(scope="module")
def founded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("founded") / "kits"
    assert main(["federation", "init", FEDERATION, "--out", str(root)]) == 0
    return root


@pytest.fixture
def kits(founded: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(founded, tmp_path / "kits"))


def sets_noise(kit: Path, before: str, after: str) -> None:
    """Let a site's operator change the noise multiplier in its settings."""
    file = kit / "local" / "settings.toml"
    text = file.read_text()
    assert text.count(f"noise-multiplier = {before}\n") == 1
    file.write_text(text.replace(f"noise-multiplier = {before}\n", f"noise-multiplier = {after}\n"))


def all_sources(kits: Path) -> list[str]:
    return [str(kits / f"source-{index}") for index in range(1, 6)]


def own(kits: Path, site: str, policy: SourcePolicy) -> Path:
    """Let a site's owner write and sign another policy."""
    (kits / site / "local" / "policy.toml").write_text(policy_text(site, policy))
    assert main(["policy", "sign", str(kits / site)]) == 0
    return kits / site


def permits(**changes: Any) -> SourcePolicy:
    """The policy that every source of the sample starts with, with other values."""
    return default_policy("sum", 2, 0, 2, clip=1.0, max_samples=1000).model_copy(update=changes)


def envelope(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> tuple[int, dict[str, Any]]:
    capsys.readouterr()
    code = main([*arguments, "--format", "json"])
    found = json.loads(capsys.readouterr().out)
    assert found["exit_code"] == code
    return code, found


def test_check_permits_what_the_policies_were_made_for(kits: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, found = envelope(["policy", "check", *all_sources(kits), FEDERATION], capsys)
    assert code == 0
    assert [(item["verdict"], item["level"], item["signed"]) for item in found["data"]["policies"]] == [
        ("permitted", "sum", True)
    ] * 5
    assert found["data"]["levels"] == {f"source-{index}": "sum" for index in range(1, 6)}


def test_check_names_site_key_asked_allowed_and_hint_and_ends_with_10(
    kits: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    own(kits, "source-2", permits(min_others=4, max_colluders=0))
    code, found = envelope(["policy", "check", *all_sources(kits), FEDERATION], capsys)
    assert code == 10
    refused = [item for item in found["data"]["policies"] if item["verdict"] == "refused"]
    assert [(item["site"], item["key"], item["allowed"]) for item in refused] == [
        ("source-2", "min-others", "at least 4")
    ]
    assert "others that count" in refused[0]["asked"]
    assert "privacy.min-others" in refused[0]["hint"]
    assert found["message"].startswith("source-2: policy refuses min-others: asked ")
    assert main(["policy", "check", str(kits / "source-2"), FEDERATION]) == 10
    out, err = capsys.readouterr()
    assert "source-2  refused  min-others: asked" in out
    assert err.startswith("error: source-2: policy refuses min-others")


def test_the_first_key_is_the_one_with_which_a_source_would_end(kits: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The headers of both rules ask for too few others; only that of the warm-up is of a rule that is not allowed."""
    own(kits, "source-2", permits(min_others=4, max_colluders=0, allowed_rules=("fedgp_auto",)))
    _, found = envelope(["policy", "check", str(kits / "source-2"), FEDERATION], capsys)
    (refused,) = found["data"]["policies"]
    assert [item["key"] for item in refused["refusals"]] == ["min-others", "allowed-rules"]
    assert found["message"].startswith("source-2: policy refuses min-others")


def test_check_names_every_key_that_refuses_once(kits: Path, capsys: pytest.CaptureFixture[str]) -> None:
    encoding = permits().quantisation.model_copy(update={"clip_min": 30.0, "clip_max": 40.0})  # of every layer
    changes = {"min_others": 4, "max_colluders": 0, "allowed_rules": ("fedavg",), "quantisation": encoding}
    own(kits, "source-2", permits(**changes))
    code, found = envelope(["policy", "check", *all_sources(kits), FEDERATION], capsys)
    refused = found["data"]["policies"][1]
    keys = ["min-others", "allowed-rules", "quantisation.clip-min"]
    assert (code, [item["key"] for item in refused["refusals"]]) == (10, keys)
    assert {key: refused[key] for key in ("key", "asked", "allowed", "hint")} == refused["refusals"][0]
    assert main(["policy", "check", str(kits / "source-2"), FEDERATION]) == 10
    out, err = capsys.readouterr()
    assert [key for key in keys if f" {key}: asked " in out] == keys
    assert err.count("error: ") == 1


@pytest.mark.parametrize(
    ("changes", "key"),
    [
        ({"allowed_rules": ("fedgp_auto",)}, "allowed-rules"),  # warm-up is source_only
        ({"allowed_rules": ("source_only",)}, "allowed-rules"),
        ({"allowed_tasks": ("my.task:Task",)}, "allowed-tasks"),
        ({"architectures": ("00" * 32,)}, "architectures"),
        ({"release": permits().release.model_copy(update={"max_attempts": 1})}, "release.max-attempts"),
        ({"release": permits().release.model_copy(update={"max_rounds": 3})}, "release.max-rounds"),
        ({"norm_cap": permits().norm_cap.model_copy(update={"kappa": 1.5})}, "norm-cap.kappa"),
    ],
)
def test_check_finds_what_a_later_round_or_attempt_would_be_refused_for(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], changes: dict[str, Any], key: str
) -> None:
    file = tmp_path / "policy.toml"
    file.write_text(policy_text("source-1", permits(**changes)))
    code, found = envelope(["policy", "check", str(file), FEDERATION], capsys)
    assert (code, found["data"]["policies"][0]["key"]) == (10, key)


def test_check_finds_that_a_cohort_would_be_asked_for_the_number_of_steps(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "policy.toml"
    metadata = permits().metadata.model_copy(update={"may_leave": ()})
    file.write_text(policy_text("source-1", permits(max_visibility="cohort", metadata=metadata)))
    monkeypatch.setenv("SECUREFDA_PRIVACY_VISIBILITY", "cohort")
    assert main(["policy", "check", str(file), FEDERATION]) == 0
    monkeypatch.setenv("SECUREFDA_STRATEGY_ALIGN", "false")
    code, found = envelope(["policy", "check", str(file), FEDERATION], capsys)
    assert (code, [item["key"] for item in found["data"]["policies"]]) == (10, ["metadata.may-leave"])


@pytest.mark.parametrize(
    ("dp", "override", "key"),
    [
        ({"required": True}, "0", "dp.required"),
        ({"max_grad_norm": 0.5}, "1.1", "dp.max-grad-norm"),
        ({"required": True}, "1.1", ""),
        ({"max_grad_norm": 0.5}, "0", ""),
    ],
)
def test_check_compares_the_noise_that_the_federation_trains_with(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    dp: dict[str, Any],
    override: str,
    key: str,
) -> None:
    monkeypatch.setenv("SECUREFDA_TRAINING_SOURCE_DP_NOISE_MULTIPLIER", override)
    file = tmp_path / "policy.toml"
    file.write_text(policy_text("source-1", permits(dp=DpPolicy(**dp))))
    code, found = envelope(["policy", "check", str(file), FEDERATION], capsys)
    assert (code, found["data"]["policies"][0].get("key", "")) == (10 if key else 0, key)


def test_kits_of_a_federation_with_noise_require_it_and_pass_their_own_check(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SECUREFDA_TRAINING_SOURCE_DP_NOISE_MULTIPLIER", "1.1")
    monkeypatch.setenv("SECUREFDA_PRIVACY_BUDGET_TARGET_EPSILON", "2")
    root = tmp_path / "kits"
    assert main(["federation", "init", FEDERATION, "--out", str(root)]) == 0
    assert load_policy(root / "source-1" / "local" / "policy.toml").dp == DpPolicy(required=True, target_epsilon=2.0)
    assert main(["policy", "check", str(root / "source-1"), FEDERATION]) == 0
    monkeypatch.delenv("SECUREFDA_TRAINING_SOURCE_DP_NOISE_MULTIPLIER")
    assert main(["policy", "check", str(root / "source-1"), FEDERATION]) == 0  # by the noise of its own settings
    sets_noise(root / "source-1", "1.1", "0.0")
    assert main(["policy", "check", str(root / "source-1"), FEDERATION]) == 10
    out, err = capsys.readouterr()
    assert "dp.required: asked training without noise" in out
    assert "securefda budget plan" in err


def test_a_policy_file_by_itself_is_of_the_site_that_is_named(
    tmp_path: Path, kits: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "policy.toml"
    file.write_text(policy_text("source-2", permits()))
    command = ["policy", "check", str(kits / "source-1" / "local" / "policy.toml"), str(file), FEDERATION]
    _, found = envelope(command, capsys)
    assert [(item["site"], item["signed"]) for item in found["data"]["policies"]] == [
        ("source-1", True),
        ("source-2", False),
    ]
    _, found = envelope([*command, "--site", "source-4"], capsys)
    assert [item["site"] for item in found["data"]["policies"]] == ["source-1", "source-4"]
    code, found = envelope([*command, "--site", "source-1"], capsys)
    assert (code, found["message"]) == (4, f"{file}: is a second policy of source-1")
    code, found = envelope([*command, "--site", "target"], capsys)
    assert (code, found["message"]) == (4, f"--site target: is no source of federation digits ({FEDERATION})")


def test_contradictions_name_site_and_key_in_check_sign_and_preflight(
    kits: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    local = kits / "source-3" / "local"
    signed = (local / "policy.sig").read_bytes()
    (local / "policy.toml").write_text(policy_text("source-3", permits(min_others=9)))
    assert main(["policy", "sign", str(kits / "source-3")]) == 4
    assert "error: min-others: source-3 asks for" in capsys.readouterr().err
    assert (local / "policy.sig").read_bytes() == signed
    file = tmp_path / "policy.toml"
    file.write_text(policy_text("source-3", permits(min_others=9)))
    code, found = envelope(["policy", "check", str(file), FEDERATION, "--site", "source-3"], capsys)
    assert code == 4
    assert found["message"].startswith("min-others: source-3 asks for min-others = 9, so for 10 sources")


def test_a_federation_in_which_no_level_satisfies_all_is_said_to_be_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Two sources, of which one allows sums only: there is no third to make up a sum."""
    federation = tmp_path / "federation.toml"
    text = sample("digits").read_text()
    start, end = text.index("sources ="), text.index("]", text.index("sources =")) + 1
    text = text[:start] + 'sources = ["source-1", "source-2"]' + text[end:]
    federation.write_text(text.replace('visibility = "sum"', 'visibility = "individual"'))
    assert 'visibility = "individual"' in federation.read_text()
    file = tmp_path / "policy.toml"
    file.write_text(policy_text("source-1", permits(min_others=1)))
    code, found = envelope(["policy", "check", str(file), str(federation)], capsys)
    assert code == 4
    assert found["message"].startswith("max-visibility: ")
    assert "source-1" in found["message"]


def header_file(kits: Path, path: Path, *, by: str = "target", **changes: Any) -> Path:
    """A header as a source keeps it: the sample's own over this federation's roster, signed by a site of it."""
    kit = load_kit(kits / by, datetime.now(UTC))
    header = replace(expected_header(load_federation(sample("digits"))), roster_digest=kit.roster.digest(), **changes)
    path.write_bytes(
        encode_signed(Signer(kit.entry.index, kit.signing_key, encode).sign(bytes(32), NO_CONTEXT, header))
    )
    return path


def test_a_header_that_was_kept_is_judged_as_the_source_judged_it(
    kits: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    kept = header_file(kits, tmp_path / "kept", attempt=9)
    code, found = envelope(["policy", "check", str(kits / "source-1"), str(kept)], capsys)
    assert (code, found["data"]["policies"][0]["key"]) == (10, "release.max-attempts")
    assert found["data"]["policies"][0]["asked"] == "attempt 9"
    sound = header_file(kits, tmp_path / "sound")
    assert main(["policy", "check", str(kits / "source-1"), str(sound)]) == 0
    assert main(["policy", "check", str(kits / "source-1" / "local" / "policy.toml"), str(sound)]) == 0
    shutil.copy(kits / "source-1" / "local" / "policy.toml", tmp_path / "policy.toml")
    code, found = envelope(["policy", "check", str(tmp_path / "policy.toml"), str(kept)], capsys)
    assert (code, found["data"]["policies"][0]["site"]) == (10, "source 1")


def test_a_header_that_was_kept_is_judged_by_the_noise_of_the_kits_own_settings(
    kits: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def answer(header: Path) -> tuple[int, str]:
        code, found = envelope(["policy", "check", str(kits / "source-1"), str(header)], capsys)
        return code, found["data"]["policies"][0].get("key", "")

    own(kits, "source-1", permits(dp=DpPolicy(expires="2020-01-01")))
    kept = header_file(kits, tmp_path / "kept")
    capped = header_file(kits, tmp_path / "capped", norm_cap=NormCapTerms(1.0, 2, Granularity.LAYER))
    assert answer(kept) == (0, "")
    sets_noise(kits / "source-1", "0.0", "1.1")
    assert answer(kept) == (10, "dp.expires")
    own(kits, "source-1", permits(max_colluders=1))
    assert answer(capped) == (0, "")
    sets_noise(kits / "source-1", "1.1", "0.0")
    assert answer(capped) == (10, "norm-cap.reports")


def test_trusted_peers_refuse_a_header_under_their_own_name(
    kits: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    own(kits, "source-1", permits(trusted_peers=("source-2", "source-3")))
    kept = header_file(kits, tmp_path / "kept")
    code, found = envelope(["policy", "check", str(kits / "source-1"), str(kept)], capsys)
    assert (code, found["data"]["policies"][0]["key"]) == (10, "trusted-peers")


def test_what_is_no_header_of_this_federation_is_not_judged(
    kits: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    kit = load_kit(kits / "target", datetime.now(UTC))
    result = Signer(0, kit.signing_key, encode).sign(bytes(32), bytes(32), Result(b"", 0, bytes(32)))
    (tmp_path / "result").write_bytes(encode_signed(result))
    (tmp_path / "noise").write_bytes(b"\xff" * 100)
    header_file(kits, tmp_path / "forged", by="source-2")
    header_file(kits, tmp_path / "kept")
    older = load_kit(kits / "source-1", datetime.now(UTC)).roster.epoch
    assert main(["federation", "revoke", str(kits), "source-5"]) == 0
    for name, why in {
        "result": "holds a message Result and no header",
        "noise": "holds no header",
        "kept": "is of another roster than the kit's, epoch 2",
        "nowhere": "is missing",
    }.items():
        capsys.readouterr()
        assert main(["policy", "check", str(kits / "source-1"), str(tmp_path / name)]) == 4
        assert why in capsys.readouterr().err
    assert older == 1


def test_a_header_that_the_target_did_not_sign_is_not_judged(
    kits: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    forged = header_file(kits, tmp_path / "forged", by="source-2")
    assert main(["policy", "check", str(kits / "source-1"), str(forged)]) == 4
    assert "is not signed by target" in capsys.readouterr().err


def test_explain_fills_in_the_numbers_of_the_kits_federation(kits: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, found = envelope(["policy", "explain", str(kits / "source-1")], capsys)
    assert (code, found["data"]["sources"], found["data"]["signature"]) == (0, 5, "right, by source-1")
    assert "min-others = 2, max-colluders = 1" in found["data"]["summary"]
    assert "N = 5" in found["data"]["summary"]
    assert found["data"]["learns"]
    assert found["data"]["does_not_learn"]
    assert any("at most epsilon = 8 at delta = 1e-05 for each row" in line for line in found["data"]["budget"])


def test_explain_reads_a_policy_that_is_not_signed_and_says_so(kits: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """It has to: a site reads its policy before it signs."""
    (kits / "source-1" / "local" / "policy.toml").write_text(policy_text("source-1", permits(min_others=3)))
    assert main(["policy", "explain", str(kits / "source-1")]) == 0
    out = capsys.readouterr().out
    assert "at least 3 other sources" in out
    assert "was changed after it was signed" in out.splitlines()[-2]


def test_explain_takes_the_number_of_sources_from_a_federation_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "policy.toml"
    file.write_text(NAMED_POLICIES["clinical-default"].text("here"))
    assert main(["policy", "explain", str(file), FEDERATION]) == 0
    assert "one sum a round of at least 3 of 5 sources" in capsys.readouterr().out
    assert main(["policy", "explain", str(file), FEDERATION, "--full"]) == 0
    assert "N = 5" in capsys.readouterr().out
    assert main(["policy", "explain", str(file), "--full"]) == 0
    words = capsys.readouterr().out
    assert "N =" not in words
    assert words.startswith("This site permits at most visibility sum")
    assert not re.search(r"(- |\. )this site", words)
    file.write_text(NAMED_POLICIES["strict"].text("here"))
    assert main(["policy", "explain", str(file), FEDERATION, "--site", "source-1"]) == 4
    assert "error: min-others: source-1 asks for min-others = 4 beside max-colluders = 1" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["kit", *sorted(NAMED_POLICIES)])
def test_explain_takes_ten_lines_of_a_terminal_and_names_the_next_command(
    name: str, kits: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(kits)
    if name != "kit":
        Path("policy.toml").write_text(NAMED_POLICIES[name].text("here"))
    place = "source-1" if name == "kit" else "policy.toml"
    capsys.readouterr()
    assert main(["policy", "explain", place]) == 0
    lines = capsys.readouterr().out.splitlines()
    heads = ["leaves", "to", "form", "beside", "one source", "noise", "why", "rounds", "rules", "signed", "more"]
    assert [re.split("  +", line)[0] for line in lines] == heads
    assert max(map(len, lines)) <= 80
    more = re.split("  +", lines[-1])[1].split()[1:]
    assert more[-1] == "--full"
    assert main(more) == 0
    text = capsys.readouterr().out
    _, found = envelope(more[:-1], capsys)
    sentences = [line for part in ("learns", "does_not_learn", "budget", "assumes") for line in found["data"][part]]
    assert all(sentence in text for sentence in sentences)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        (
            {},
            "one sum a round of at least 4 of 5 sources\nbeside      at least 2 other sources, not counting 1 that",
        ),
        ({"max_visibility": "cohort"}, "one sum per random cohort of at least 4 sources"),
        ({"max_colluders": 0}, "at least 2 other sources, if none colludes"),
        ({"allowed_rules": ("fedda",)}, "leaves      update, row count"),
        ({"dp": DpPolicy(required=True, target_epsilon=2.0)}, "required: epsilon at most 2 at delta 1e-05"),
        ({"dp": DpPolicy(required=True)}, "update or second moments, row count; no row"),
        ({"allowed_tasks": ("my.task:Task",)}, "tasks: Task"),
        ({"release": permits().release.model_copy(update={"max_runs": 0})}, "no run without consent"),
        ({"norm_cap": permits().norm_cap.model_copy(update={"granularity": "model"})}, "contribution is, and could"),
    ],
)
def test_the_ten_lines_follow_the_policy(
    changes: dict[str, Any], said: str, kits: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    policy = permits(max_colluders=1).model_copy(update=changes)
    (kits / "source-1" / "local" / "policy.toml").write_text(policy_text("source-1", policy))
    assert main(["policy", "explain", str(kits / "source-1")]) == 0
    assert said in capsys.readouterr().out


@pytest.mark.parametrize("name", sorted(NAMED_POLICIES))
def test_a_template_is_printed_or_written_and_loads(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["policy", "template", name]) == 0
    printed = capsys.readouterr().out
    out = tmp_path / "policy.toml"
    assert main(["policy", "template", name, "--out", str(out)]) == 0
    assert out.read_text() == printed
    assert load_policy(out) == NAMED_POLICIES[name].policy
    assert main(["policy", "template", name, "--out", str(out)]) == 4


def test_sign_shows_what_is_signed_and_the_kit_works_again(kits: Path, capsys: pytest.CaptureFixture[str]) -> None:
    kit = own(kits, "source-1", permits(min_others=3))
    out = capsys.readouterr().out
    assert "  min-others: 2 -> 3\n    A sum must contain at least this many other sources" in out
    assert "beside      at least 3 other sources" in out
    assert f"source-1 signed {kit / 'local' / 'policy.toml'} for digits" in out
    assert load_signed_policy(load_kit(kit, datetime.now(UTC))).min_others == 3


def test_sign_names_each_key_that_differs_from_the_last_signed_policy(
    kits: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = permits(allowed_rules=("fedda", "fedgp"))
    own(kits, "source-1", before)
    file = kits / "source-1" / "local" / "policy.toml"
    release = before.release.model_copy(update={"max_rounds": 50})
    file.write_text(policy_text("source-1", permits(allowed_rules=("fedavg", "fedda"), release=release)))
    _, found = envelope(["policy", "sign", str(kits / "source-1")], capsys)
    assert [(change["key"], change["old"], change["new"]) for change in found["data"]["changes"]] == [
        ("allowed-rules", ["fedda", "fedgp"], ["fedavg", "fedda"]),
        ("release.max-rounds", 10000, 50),
    ]
    assert all(change["meaning"].endswith(".") for change in found["data"]["changes"])
    file.write_text(file.read_text().replace("max-rounds = 50", "max-rounds = 51") + "# a comment\n")
    assert main(["policy", "sign", str(kits / "source-1")]) == 0
    assert "  release.max-rounds: 50 -> 51\n" in capsys.readouterr().out
    file.write_text(f"{file.read_text()}# another\n")
    assert main(["policy", "sign", str(kits / "source-1")]) == 0
    assert capsys.readouterr().out.startswith("No value differs from the policy that source-1 signed last.\n")


def test_a_first_signature_says_that_all_is_new(kits: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (kits / "source-1" / "local" / "policy.sig").unlink()
    assert main(["policy", "sign", str(kits / "source-1")]) == 0
    assert capsys.readouterr().out.startswith("source-1 has signed no policy here before: all of it is new.\n")


def test_a_text_that_was_put_into_the_signature_is_compared_with_nothing(
    kits: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Else a thief of the folder could hide an edit from the one who signs it."""
    local = kits / "source-1" / "local"
    edited = (local / "policy.toml").read_text().replace("min-others = 2", "min-others = 1")
    assert edited != (local / "policy.toml").read_text()
    (local / "policy.toml").write_text(edited)
    (local / "policy.sig").write_text(
        json.dumps(json.loads((local / "policy.sig").read_text()) | {"policy_text": edited})
    )
    assert main(["policy", "sign", str(kits / "source-1")]) == 0
    said = capsys.readouterr().out
    assert said.startswith("Nothing to compare with, so read all of it: ")
    assert "holds another policy than the one that was signed" in said
    assert main(["federation", "renew", str(kits), "source-1"]) == 0
    capsys.readouterr()
    assert main(["policy", "sign", str(kits / "source-1")]) == 0
    assert "is not by this site's present signing key" in capsys.readouterr().out


@pytest.mark.parametrize(("given", "answer", "is_signed"), [((), "n", False), ((), "y", True), (("--yes",), "n", True)])
def test_on_a_terminal_sign_asks_before_it_signs(
    given: tuple[str, ...],
    answer: str,
    is_signed: bool,
    kits: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    kit = kits / "source-1"
    (kit / "local" / "policy.toml").write_text(policy_text("source-1", permits(min_others=3)))
    before = (kit / "local" / "policy.sig").read_bytes()
    monkeypatch.setattr("sys.stdin", Terminal(f"{answer}\n"))
    capsys.readouterr()
    assert main(["policy", "sign", str(kit), *given]) == 0
    out, err = capsys.readouterr()
    assert "min-others: 2 -> 3" in (out if given else err)
    assert ("sign it as source-1?" in err) is not bool(given)
    assert ("nothing was signed" in out) is not is_signed
    assert ((kit / "local" / "policy.sig").read_bytes() != before) is is_signed


def findings(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> dict[str, dict[str, Any]]:
    _, found = envelope(["preflight", *arguments], capsys)
    return {item["check"]: item for item in found["data"]["findings"]}


def test_preflight_says_what_the_policy_permits_and_who_signed_it(
    kits: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    message = findings([str(kits / "source-1")], capsys)["policy"]["message"]
    assert message == "at most sum, min-others 2, max-colluders 1, kappa 1 per layer; signed by source-1"


def test_preflight_fails_on_a_policy_that_forbids_the_sites_own_task(
    kits: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    own(kits, "source-1", permits(allowed_tasks=("my.task:Task",)))
    found = findings([str(kits / "source-1")], capsys)["policy"]
    assert (found["level"], found["exit_code"]) == ("fail", 10)
    assert "allowed-tasks" in found["message"]


def test_preflight_of_all_kits_plans_the_levels(kits: Path, capsys: pytest.CaptureFixture[str]) -> None:
    own(kits, "source-1", default_policy("individual"))
    found = findings([*all_sources(kits), str(kits / "target")], capsys)["levels"]
    assert (found["level"], found["message"]) == ("ok", ", ".join(f"source-{index} at sum" for index in range(1, 6)))
    found = findings(all_sources(kits), capsys)["levels"]
    assert found["message"].startswith("source-1 at individual, source-2 at sum")


def test_preflight_of_all_kits_finds_that_no_level_satisfies_all(
    kits: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """After three sources left, one that allows only sums has nobody to be summed with."""
    for index in (3, 4, 5):
        assert main(["federation", "revoke", str(kits), f"source-{index}"]) == 0
    own(kits, "source-1", default_policy("individual"))
    sources = [str(kits / "source-1"), str(kits / "source-2")]
    found = findings(sources, capsys)
    assert (found["levels"]["level"], found["levels"]["exit_code"]) == ("fail", 4)
    assert found["levels"]["message"].startswith("max-visibility: ")
    assert "source-2" in found["levels"]["message"]
    assert found["policy"]["message"].startswith(
        "min-others: source-2 asks for min-others = 2 beside max-colluders = 1, so for"
    )
    own(kits, "source-2", permits(min_others=1))
    found = findings(sources, capsys)
    assert (found["levels"]["level"], found["levels"]["message"]) == ("ok", "source-1 at sum, source-2 at sum")


def test_preflight_of_some_kits_does_not_guess_at_the_others(kits: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = findings(all_sources(kits)[:4], capsys)["levels"]
    assert (found["level"], found["message"]) == ("warn", "not checked: the policies of source-5 are not here")


def test_preflight_of_kits_of_two_federations_names_the_one_that_does_not_fit(
    kits: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["federation", "init", FEDERATION, "--out", str(tmp_path / "others")]) == 0
    stray = str(tmp_path / "others" / "source-5")
    found = findings([*all_sources(kits)[:4], stray], capsys)["levels"]
    assert (found["level"], found["exit_code"]) == ("fail", 4)
    assert found["message"] == f"{stray}: has another roster than {kits / 'source-1'}"


def agreed(kit: Path, **values: str) -> None:
    """Replace values of keys in the policy of a kit, which is not signed again."""
    file = kit / "local" / "policy.toml"
    text = file.read_text()
    for name, value in values.items():
        text, count = re.subn(rf"(?m)^{name.replace('_', '-')} = .*$", f"{name.replace('_', '-')} = {value}", text)
        assert count
    file.write_text(text)


def signed_by(kit: Path, name: str, *more: str) -> int:
    return main(["policy", "sign", str(kit), "--name", name, "--role", "officer", *more])


def test_two_people_sign_one_after_the_other_and_an_edit_begins_anew(
    kits: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    kit = kits / "source-1"
    agreed(kit, signatures_required="2")
    assert main(["policy", "sign", str(kit)]) == 4
    assert "--name: is missing" in capsys.readouterr().err
    assert signed_by(kit, "Ada") == 0
    assert "1 more must sign by name before a process starts" in capsys.readouterr().out
    before = (kit / "local" / "policy.sig").read_bytes()
    assert signed_by(kit, "ADA ") == 4
    assert main(["preflight", str(kit), "--offline"]) == 4
    assert "is signed by 1 person (Ada), and agreement.signatures-required is 2" in capsys.readouterr().out
    assert (kit / "local" / "policy.sig").read_bytes() == before
    assert signed_by(kit, "Ben") == 0
    assert main(["policy", "explain", str(kit)]) == 0
    assert "right, by source-1 and 2 people; until " in capsys.readouterr().out
    agreed(kit, purpose='"another one"')
    assert signed_by(kit, "Ben") == 0
    assert [person.name for person in load_kit(kit, datetime.now(UTC)).signers()] == ["Ben"]


def test_check_and_explain_say_that_a_policy_has_ended(kits: Path, capsys: pytest.CaptureFixture[str]) -> None:
    kit = kits / "source-1"
    agreed(kit, expires='"2020-01-01"')
    assert main(["policy", "sign", str(kit)]) == 0
    code, found = envelope(["policy", "check", str(kit), FEDERATION], capsys)
    (refused,) = found["data"]["policies"]
    assert (code, refused["key"], len(refused["refusals"])) == (10, "agreement.expires", 1)
    assert refused["allowed"] == "rounds until 2020-01-01"
    assert main(["policy", "explain", str(kit)]) == 0
    assert "right, by source-1; ended on 2020-01-01" in capsys.readouterr().out


def test_the_first_policies_name_the_targets_organisation_and_end(tmp_path: Path) -> None:
    made = ["federation", "init", FEDERATION, "--out", str(tmp_path / "kits"), "--entity", "target=Clinic of Geneva"]
    assert main(made) == 0
    assert main(["federation", "add", str(tmp_path / "kits"), "source-6", "--config", FEDERATION]) == 0
    for site in ("source-1", "source-6"):
        stated = load_policy(tmp_path / "kits" / site / "local" / "policy.toml").agreement
        assert (stated.recipient, stated.template) == ("Clinic of Geneva", "the planned run")
        assert 364 <= (datetime.fromisoformat(stated.expires) - datetime.now()).days <= 366
