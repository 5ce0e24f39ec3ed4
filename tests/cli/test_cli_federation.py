"""``securefda federation``, ``kit`` and ``preflight`` on real kits."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import socket
from datetime import UTC, datetime
from pathlib import Path

import pytest
from free_ports import free_port

from securefda.bootstrap import endpoint_of
from securefda.cli import main
from securefda.errors import ExitCode
from securefda.samples import sample
from securefda.site.certificates import host_names
from securefda.site.config import load_aggregator, load_source
from securefda.site.endpoints import Address, SiteSpec
from securefda.site.enrolment import init_federation
from securefda.site.kit import load_kit
from securefda.site.policy import load_policy
from securefda.site.policy.signed import write_policy_signature


@pytest.fixture(scope="module")
def founded(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, int]:
    """A federation on a port that was free a moment ago."""
    port = free_port()
    root = tmp_path_factory.mktemp("founded") / "kits"
    address = ["--address", f"127.0.0.1:{port}", "--set", "privacy.min-others=3", "--set", "session.attempts=4"]
    assert main(["federation", "init", str(sample("digits")), "--out", str(root), *address]) == 0
    return root, port


@pytest.fixture
def kits(founded: tuple[Path, int], tmp_path: Path) -> Path:
    return Path(shutil.copytree(founded[0], tmp_path / "kits"))


def test_init_makes_a_kit_per_site_with_settings_and_policy_that_load(kits: Path, founded: tuple[Path, int]) -> None:
    names = sorted(path.name for path in kits.iterdir())
    assert names == ["ca", *(f"source-{i}" for i in range(1, 6)), "target"]
    aggregator = load_aggregator(kits / "target" / "local" / "settings.toml")
    source = load_source(kits / "source-1" / "local" / "settings.toml")
    assert aggregator.transport.listen == f"127.0.0.1:{founded[1]}"
    assert aggregator.aggregator.kit.resolve() == (kits / "target").resolve()
    assert source.source.out == kits / "source-1" / "local" / "run"
    policy = load_policy(kits / "source-1" / "local" / "policy.toml")
    assert (policy.min_others, policy.release.max_attempts) == (3, 4)


def test_new_keys_in_the_authoritys_own_folder_are_not_said_to_be_unknown_to_it(
    kits: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    moved = Path(shutil.copytree(kits / "source-2", tmp_path / "at-home" / "source-2"))
    unknown = "which no other site and no authority knows"
    for kit, is_known in ((kits / "source-1", True), (moved, False)):
        capsys.readouterr()
        assert main(["site", "renew", str(kit)]) == 0
        first = capsys.readouterr().out.splitlines()[0]
        assert (f"in the authority's own folder {kits}: the authority can read them" in first) == is_known
        assert (unknown in first) != is_known


@pytest.mark.parametrize(
    ("options", "listen"),
    [
        (["--address", "clinic.example.org:8443", "--listen", "0.0.0.0:9443"], "0.0.0.0:9443"),
        (["--address", "127.0.0.1:8443"], "127.0.0.1:8443"),
        (["--address", "127.0.0.1:8443", "--set", "transport.listen=0.0.0.0:9"], "0.0.0.0:9"),
        (
            ["--address", "127.0.0.1:8443", "--set", "transport.listen=0.0.0.0:9", "--listen", "[::1]:9443"],
            "[::1]:9443",
        ),
    ],
)
def test_where_others_reach_the_aggregator_and_where_it_binds_are_two_things(
    tmp_path: Path, options: list[str], listen: str
) -> None:
    assert main(["federation", "init", "digits", "--out", str(tmp_path / "kits"), *options]) == 0
    target = tmp_path / "kits" / "target"
    assert load_aggregator(target / "local" / "settings.toml").transport.listen == listen
    assert str(load_kit(target, datetime.now(UTC)).endpoints.aggregator) == options[1]
    assert "listen" not in (tmp_path / "kits" / "source-1" / "local" / "settings.toml").read_text()


def test_a_source_may_have_an_address_of_its_own_and_a_certificate_several_names(tmp_path: Path) -> None:
    kits, address = tmp_path / "kits", ["--address", "clinic.example.org:8443"]
    names = ["--name", "target=clinic.internal", "--name", "target=10.0.0.5", "--reach", "source-2=10.0.0.5:9443"]
    assert main(["federation", "init", "digits", "--out", str(kits), *address, *names]) == 0
    routes = []
    for kit in (kits / "source-1", kits / "source-2"):
        transport = load_source(kit / "local" / "settings.toml").transport
        routes.append(endpoint_of(load_kit(kit, datetime.now(UTC)), transport).address)
    assert routes == ["clinic.example.org:8443", "10.0.0.5:9443"]
    target = load_kit(kits / "target", datetime.now(UTC))
    assert host_names(target.certificate) == ("clinic.internal", "clinic.example.org", "10.0.0.5")


@pytest.mark.parametrize(
    ("option", "error"),
    [
        (["--reach", "target=10.0.0.5:1"], "--reach target: is no site of this federation"),
        (["--reach", "source-1=10.0.0.5"], "--reach: '10.0.0.5' is not host:port"),
        (["--address", "fl_server:8443"], "--address: 'fl_server' is neither a host name nor an IP address"),
        (["--address", "0.0.0.0:8443"], "--address: 0.0.0.0 stands for all addresses of a machine"),
        (["--address", "[::]:8443"], "--address: :: stands for all addresses of a machine"),
        (["--listen", "0.0.0.0:99999"], "--listen: port 99999"),
    ],
)
def test_init_refuses_wrong_sites_and_leaves_nothing(
    option: list[str], error: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["federation", "init", str(sample("digits")), "--out", str(tmp_path / "kits"), *option]) == 4
    assert error in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_add_revoke_and_renew_each_make_the_next_epoch(kits: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = ["--config", str(sample("digits"))]
    steps = [
        (["add", str(kits), "source-6", "--entity", "Sixth Hospital", *config], 2, "source-6"),
        (["renew", str(kits), "source-1"], 3, "source-6"),
        (["renew", str(kits), "target"], 4, "source-6"),
        (["revoke", str(kits), "source-6"], 5, "source-5"),
    ]
    for arguments, epoch, last in steps:
        assert main(["federation", *arguments, "--format", "json"]) == 0
        data = json.loads(capsys.readouterr().out)["data"]
        assert (data["epoch"], data["sites"][-1], data["missing_signatures"]) == (epoch, last, [])
    assert main(["federation", "revoke", str(kits), "target"]) == 4


@pytest.mark.parametrize(("site", "signs"), [("source-1", True), ("target", False)])
def test_renew_reminds_of_a_policy_where_there_is_one(
    site: str, signs: bool, kits: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["federation", "renew", str(kits), site]) == 0
    assert (f"{site} then signs its policy with its new key" in capsys.readouterr().out) == signs


def test_revoke_says_what_becomes_of_the_struck_kit(kits: Path, capsys: pytest.CaptureFixture[str]) -> None:
    struck = kits / "source-5"
    before = {path: path.stat().st_mtime_ns for path in struck.rglob("*")}
    assert main(["federation", "revoke", str(kits), "source-5"]) == 0
    last = capsys.readouterr().out.splitlines()[-1]
    assert last == f"{struck} stays as it is; that kit opens nothing at a process that has started with epoch 2"
    assert {path: path.stat().st_mtime_ns for path in struck.rglob("*")} == before


def test_a_member_whose_kit_has_left_signs_at_home(kits: Path, capsys: pytest.CaptureFixture[str]) -> None:
    away = kits.parent / "away"
    shutil.move(kits / "source-1", away)
    assert main(["federation", "revoke", str(kits), "source-5", "--format", "json"]) == 0
    assert json.loads(capsys.readouterr().out)["data"]["missing_signatures"] == ["source-1"]
    signed = kits.parent / "signed.json"
    assert main(["federation", "sign", str(away), str(kits / "ca" / "roster.json"), "--out", str(signed)]) == 0
    capsys.readouterr()
    assert main(["federation", "merge", str(kits), str(signed), "--format", "json"]) == 0
    assert json.loads(capsys.readouterr().out)["data"]["missing_signatures"] == []


def test_a_packaged_kit_says_what_it_is_and_shows_no_key(kits: Path, capsys: pytest.CaptureFixture[str]) -> None:
    package = kits.parent / "source-1.tar"
    assert main(["kit", "package", str(kits / "source-1"), "--out", str(package), "--format", "json"]) == 0
    digest = json.loads(capsys.readouterr().out)["data"]["sha256"]
    assert main(["kit", "inspect", str(package), "--format", "json"]) == 0
    printed = capsys.readouterr().out
    data = json.loads(printed)["data"]
    assert (data["site_id"], data["role"], data["package_digest"]) == ("source-1", "source", digest)
    assert package.stat().st_mode & 0o777 == 0o600
    assert "PRIVATE" not in printed


def test_a_kit_that_one_stands_in_is_packaged_beside_itself(
    kits: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(kits / "source-1")
    assert main(["kit", "package", ".", "--format", "json"]) == 0
    package = Path(json.loads(capsys.readouterr().out)["data"]["package"])
    assert package.resolve() == kits / "source-1.tar"
    assert main(["kit", "inspect", str(package)]) == 0


def test_what_an_authority_certified_cannot_print_a_line_of_its_own(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    specs = [
        SiteSpec("target", "target", "Target", ("localhost",)),
        *(SiteSpec(f"source-{i}", "source", f"Source {i}") for i in range(1, 4)),
    ]
    # An honest authority's software refuses such a name
    object.__setattr__(specs[1], "names", ("x\nkey fingerprint  0123\x1b[8m",))
    init_federation(
        tmp_path / "fed",
        "heart-study",
        specs,
        aggregator=Address("localhost", 8443),
        policy_text="min-others = 2\n",
        settings_text=None,
        now=datetime.now(UTC),
    )
    assert main(["kit", "inspect", str(tmp_path / "fed" / "source-1")]) == 0
    printed = capsys.readouterr().out
    assert "x?key fingerprint  0123?[8m" in printed
    assert "\x1b" not in printed


def test_preflight_of_a_sound_target_is_all_ok(kits: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["preflight", str(kits / "target"), "--format", "json"]) == 0
    findings = json.loads(capsys.readouterr().out)["data"]["findings"]
    assert [finding["check"] for finding in findings] == [
        "kit",
        "certificate",
        "settings",
        "port",
        "disk",
        "policy",
        "key-agreement",
        "device",
        "data",
    ]
    assert {finding["level"] for finding in findings} == {"ok"}
    assert findings[6]["message"] == "x25519-mlkem768; this machine has ML-KEM-768"


@pytest.fixture
def without_ml_kem(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine whose build of the package ``cryptography`` has no ML-KEM."""
    from cryptography.hazmat.backends.openssl.backend import backend

    monkeypatch.setattr(type(backend), "mlkem_supported", lambda self: False)


NO_ML_KEM = "session.key-agreement: this build of the package cryptography has no ML-KEM-768"


@pytest.mark.usefixtures("without_ml_kem")
def test_preflight_says_that_a_machine_has_no_ml_kem(kits: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for site, offline in (("target", []), ("source-1", ["--offline"])):
        assert main(["preflight", str(kits / site), *offline, "--format", "json"]) == 4
        findings = json.loads(capsys.readouterr().out)["data"]["findings"]
        (failed,) = (one for one in findings if one["level"] == "fail")
        assert (failed["check"], failed["message"]) == ("key-agreement", NO_ML_KEM)
        assert 'set session.key-agreement = "x25519"' in failed["hint"]


@pytest.mark.usefixtures("without_ml_kem")
@pytest.mark.parametrize("command", ["init", "source", "aggregator"])
def test_what_needs_ml_kem_ends_at_once_without_it(
    kits: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], command: str
) -> None:
    site = {"source": "source-1", "aggregator": "target"}.get(command)
    start = [command, "start", "--config", str(kits / f"{site}" / "local" / "settings.toml")]
    init = ["federation", "init", str(sample("digits")), "--out", str(tmp_path / "new")]
    assert main(init if site is None else start) == 4
    error, hint = (line for line in capsys.readouterr().err.splitlines() if line.startswith(("error: ", "hint: ")))
    assert error == f"error: {NO_ML_KEM}"
    assert 'set session.key-agreement = "x25519"' in hint
    assert not (tmp_path / "new").exists()


@pytest.mark.usefixtures("without_ml_kem")
def test_a_federation_of_x25519_needs_no_ml_kem(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    kits = tmp_path / "kits"
    plain = ["--set", "session.key-agreement=x25519"]
    assert main(["federation", "init", str(sample("digits")), "--out", str(kits), *plain]) == 0
    capsys.readouterr()
    assert main(["preflight", str(kits / "source-1"), "--offline"]) == 0
    assert "x25519; this machine has no ML-KEM-768" in capsys.readouterr().out


def test_preflight_looks_at_rows_where_layers_stay_at_the_site(kits: Path, capsys: pytest.CaptureFixture[str]) -> None:
    settings = kits / "source-1" / "local" / "settings.toml"
    settings.write_text(settings.read_text().replace("[training]", "[training]\npersonal-layers = 2", 1))
    assert load_source(settings).training.personal_layers == 2
    assert main(["preflight", str(kits / "source-1"), "--offline", "--format", "json"]) == 0
    findings = json.loads(capsys.readouterr().out)["data"]["findings"]
    assert "data" in [finding["check"] for finding in findings if finding["level"] == "ok"]


def test_preflight_of_a_source_without_an_aggregator_ends_with_2(
    kits: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["preflight", str(kits / "source-1")]) == 2
    out, err = capsys.readouterr()
    assert "data" in out
    assert "-> start the aggregator" in out
    assert err.startswith("error: aggregator: ")


def test_preflight_names_a_wrong_policy_and_wrong_data_at_once(kits: Path, capsys: pytest.CaptureFixture[str]) -> None:
    local = kits / "source-1" / "local"
    (local / "policy.toml").write_text("min-other = 3\nmax-visibility = 'all'\n")
    kit = load_kit(kits / "source-1", datetime.now(UTC))
    wrong = (local / "policy.toml").read_bytes()
    write_policy_signature(local / "policy.toml", wrong, kit.federation_id, kit.site_id, kit.signing_key)
    assert main(["preflight", str(kits / "source-1"), "--offline", "--format", "json"]) == 4
    envelope = json.loads(capsys.readouterr().out)
    failed = [f for f in envelope["data"]["findings"] if f["level"] == "fail"]
    assert [f["check"] for f in failed] == ["policy", "policy"]  # each failure once, though the data check has them too
    assert "min-other: unknown key" in failed[0]["message"]
    assert str(local / "policy.toml") in failed[0]["message"]
    assert failed[0]["hint"] == "did you mean min-others?"
    assert "max-visibility: must be 'individual', 'cohort' or 'sum'" in failed[1]["message"]
    assert envelope["error_code"] == "PreflightError"


def test_preflight_looks_at_rows_beside_an_unsigned_policy_and_at_settings_beside_a_broken_kit(
    kits: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    kit = kits / "source-1"
    policy, settings = kit / "local" / "policy.toml", kit / "local" / "settings.toml"
    policy.write_text(policy.read_text() + "# changed\n")
    settings.write_text(settings.read_text().replace("target-rows = 100", "target-rows = 3"))
    assert main(["preflight", str(kit), "--offline", "--format", "json"]) == 4
    found = json.loads(capsys.readouterr().out)["data"]["findings"]
    assert [one["check"] for one in found if one["level"] == "fail"] == ["policy", "data"]

    (kit / "startup" / "ca.pem").unlink()
    settings.write_text(settings.read_text().replace("seed = 0", 'seed = "x"'))
    assert main(["preflight", str(kit), "--offline", "--format", "json"]) == 4
    found = json.loads(capsys.readouterr().out)["data"]["findings"]
    assert [one["check"] for one in found if one["level"] == "fail"] == ["kit", "settings"]


def test_preflight_lists_every_error_of_the_settings_once(kits: Path, capsys: pytest.CaptureFixture[str]) -> None:
    settings = kits / "source-1" / "local" / "settings.toml"
    settings.write_text(settings.read_text().replace("batch-size = 32", "batch-sizes = 32\nepoch = 2"))
    assert main(["preflight", str(kits / "source-1"), "--offline", "--format", "json"]) == 4
    failed = [f for f in json.loads(capsys.readouterr().out)["data"]["findings"] if f["level"] == "fail"]
    assert [f["check"] for f in failed[:2]] == ["settings", "settings"]
    assert [f["message"].partition(":")[0] for f in failed] == ["training.batch-sizes", "training.epoch"]


def test_preflight_of_a_target_tries_the_address_that_its_settings_listen_on(
    kits: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = kits / "target" / "local" / "settings.toml"
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        settings.write_text(re.sub(r'listen = ".*"', f'listen = "{address}"', settings.read_text()))
        assert main(["preflight", str(kits / "target")]) == 4
    assert f"address {address}: the port is taken" in capsys.readouterr().out


def test_preflight_of_a_wrong_listen_address_checks_no_other_port(
    kits: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["preflight", str(kits / "target"), "--set", "transport.listen=nowhere", "--format", "json"]) == 4
    found = {one["check"]: one for one in json.loads(capsys.readouterr().out)["data"]["findings"]}
    assert (found["settings"]["level"], found["port"]["level"]) == ("fail", "warn")
    assert found["port"]["message"].startswith("not checked")


def test_preflight_takes_what_start_takes(kits: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    kit, full = str(kits / "source-1"), tmp_path / "no-folder"
    full.write_text("")
    given = ["--set", "training.batch-size=7", "--out", str(tmp_path / "elsewhere" / "run")]
    assert main(["preflight", kit, "--offline", *given]) == 0
    out = capsys.readouterr().out
    assert "not looked for at 127.0.0.1:" in out
    assert "one batch of 7 rows: loss " in out
    assert f"free in {tmp_path}" in out
    assert f"--set training.batch-size=7 --out {tmp_path / 'elsewhere' / 'run'}" in out
    assert main(["preflight", kit, "--offline", "--set", "training.batch-sizes=7"]) == 4
    assert main(["preflight", kit, "--offline", "--out", str(full / "run")]) == 4
    assert f"{full}: cannot be written" in capsys.readouterr().out
    assert main(["preflight", kit, str(kits / "target"), *given]) == 4
    assert "--out: is of one site" in capsys.readouterr().err


def test_preflight_knows_a_target_from_a_source(kits: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main(["preflight", str(kits / "target"), "--format", "json"])
    checks = {f["check"]: f["message"] for f in json.loads(capsys.readouterr().out)["data"]["findings"]}
    assert checks["policy"].startswith("a target has none")
    assert "rule fedda_auto" in checks["policy"]
    assert "securefda aggregator start --config" in checks["settings"]


def test_explain_of_a_target_says_what_it_asks_for_and_sends(kits: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["policy", "explain", str(kits / "target")]) == 0
    text = capsys.readouterr().out
    assert text.startswith("target is the target: it has no policy")
    assert "visibility sum: one sum of the sources' updates per round." in text
    assert "in rounds of fedda_auto, also target's own update and statistics" in text
    settings = kits / "target" / "local" / "settings.toml"
    settings.write_text(settings.read_text().replace('"fedda_auto"', '"fedavg"'))
    assert main(["policy", "explain", str(kits / "target"), "--format", "json"]) == 0
    assert "own update" not in str(json.loads(capsys.readouterr().out)["data"]["sends"])


def test_ctrl_c_in_any_command_is_one_line(
    kits: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "task_under_ctrl_c.py").write_text("raise KeyboardInterrupt\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    settings = kits / "target" / "local" / "settings.toml"
    settings.write_text(settings.read_text().replace("securefda.tasks.digits:Digits", "task_under_ctrl_c:Task"))
    assert main(["preflight", str(kits / "target")]) == 130
    assert capsys.readouterr().err == "error: interrupted\n"


HOME_FEDERATION = """\
[federation]
name = "study"
target = "clinic"
sources = ["north", "south"]
[task]
factory = "securefda.tasks.digits:Digits"
[privacy]
min-others = 1
"""


def test_commands_that_a_federation_with_keys_at_home_is_told_to_run_can_be_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def run(command: str, code: int = 0) -> str:
        assert main(command.split()) == code, command
        shown = capsys.readouterr()
        return shown.out + shown.err

    monkeypatch.chdir(tmp_path)
    Path("federation.toml").write_text(HOME_FEDERATION)
    Path("requests").mkdir()
    for site in ("clinic", "north", "south"):
        asked = run(f"site init {site} --federation study{' --address 127.0.0.1:8443' if site == 'clinic' else ''}")
        assert f"securefda site join {site} PACKAGE --ca FINGERPRINT" in asked
        shutil.copy(f"{site}/requested/request.json", f"requests/{site}.json")
    assert "securefda site join north PACKAGE --ca FINGERPRINT" in run("preflight north --offline", 4)

    founded = run("federation init federation.toml --requests requests")
    assert "securefda site join KIT PACKAGE --ca FINGERPRINT" in founded
    assert "federation sign" not in founded  # no site has a kit yet that could
    ca = founded.split("CA fingerprint (verify it by phone): ")[1].split()[0]
    for site in ("clinic", "north", "south"):
        assert "changed since" not in run(f"site join {site} kits/{site} --ca {ca}")
    incomplete = run("preflight north --offline", 4)
    assert "wait for the authority's package with all signatures" in incomplete
    for site in ("clinic", "north", "south"):
        run(f"federation merge kits {site}/local/roster.signed.json")
    for site in ("clinic", "north", "south"):
        assert "changed since" not in run(f"site join {site} kits/{site}")

    renewing = run("site renew north")
    assert "securefda site join north PACKAGE" in renewing
    assert "--ca" not in renewing
    changed = run("federation renew kits north --request north/requested/request.json")
    assert ca in changed
    joined = run("site join south kits/south")
    assert "changed since epoch 1 (ask each site by phone before you send your signature):\n  new keys: north" in joined
    assert "securefda federation sign KIT roster.json" in changed
    run("federation sign clinic kits/ca/roster.json")
    data = json.loads(run("site join clinic kits/clinic --format json"))["data"]
    assert data["changes"] == {"new": [], "new_keys": ["north"], "another_role_or_legal_entity": [], "gone": []}


def test_commands_to_copy_quote_the_blanks_of_a_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("federation.toml").write_text(HOME_FEDERATION)
    kit = "home of ä/north"
    assert main(["site", "init", "north", "--federation", "study", "--out", kit]) == 0
    told = capsys.readouterr().out.split("comes back: ")[1]
    assert shlex.split(told) == ["securefda", "site", "join", kit, "PACKAGE", "--ca", "FINGERPRINT"]
    assert main(["preflight", kit, "--offline"]) == ExitCode.CONFIG
    assert f"securefda site join '{kit}' PACKAGE --ca FINGERPRINT" in " ".join(capsys.readouterr().err.split())

    assert main(["federation", "init", "federation.toml", "--out", "their kits", "--address", "127.0.0.1:8443"]) == 0
    told = [shlex.split(line) for line in capsys.readouterr().out.splitlines() if line.startswith("  securefda ")]
    assert [command[1] for command in told] == ["preflight", "aggregator", "preflight", "source"]
    assert all(Path(command[-1]).exists() for command in told)
