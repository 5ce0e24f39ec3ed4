"""What a user can get wrong: one line that says what and where, the right exit code, and a hint that works.

Each entry of the tables is one wrong input. The test runs the command, reads the line and the hint, sees that no file
has changed, does what the hint says, and runs the command again: it must pass, or come to the next thing, ``then``.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import resource
import shlex
import shutil
import socket
import sqlite3
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

import pytest
from audit_party import RUN, Party
from budget_owner import found_noisy
from free_ports import free_port
from PIL import Image
from plain_user import plain_user

from securefda.cli import federation as federation_commands
from securefda.cli import main
from securefda.site.certificates import parse_ca

FEDERATION = """\
[federation]
name = "digits"
sources = ["source-1", "source-2", "source-3"]
[task]
factory = "securefda.tasks.digits:Digits"
[strategy]
rounds = 3
warm-up-rounds = 1
"""
LOG = f"logs/{RUN}"
SOURCE, OTHER = "kits/source-1", "kits/source-2"
POLICY, SETTINGS = f"{SOURCE}/local/policy.toml", f"{SOURCE}/local/settings.toml"
NOISY = "--config noisy/source-1/local/settings.toml"
FURTHER = "taken holds a run already"
"""What `simulate --out taken` comes to as soon as its settings are right; nothing is trained."""
NOT_OURS = ("Traceback", "Input should", "Value error", "pydantic", "Errno", "errno", "object at 0x", "None")
HASHED_BYTES = 1_000_000

Act = Callable[[], object]
Capture = pytest.CaptureFixture[str]


@dataclass(frozen=True)
class Wrong:
    """One wrong input.

    Args:
        command: what is typed behind ``securefda``, in a folder with a federation's file, its kits, and a log.
        line: what the one error line says, a regular expression.
        hint: what the hint says, likewise; empty where the line itself says what is allowed, and no hint is needed.
        code: the exit code.
        harm: what was done before.
        follow: what the hint says to do.
        again: the command after that, where it is another.
        then: what the second command's error line says, where it does not pass.
        prints: whether the command prints a table of what it looked at beside the error.
    """

    command: str
    line: str
    hint: str = ""
    code: int = 4
    harm: Act | None = None
    follow: Act | None = None
    again: str = ""
    then: str = ""
    prints: bool = False


# --- what is done to files, relative to the folder --------------------------------------------------------------------


def acts(*several: Act) -> Act:
    return lambda: [act() for act in several]


def writable(path: str) -> Path:
    """The file, which its owner may write from now on: the public files of a kit are there to be read."""
    file = Path(path)
    if file.is_file():
        file.chmod(file.stat().st_mode | 0o200)
    return file


def write(path: str, data: str | bytes) -> Act:
    return lambda: writable(path).write_bytes(data.encode() if isinstance(data, str) else data)


def change(path: str, old: str, new: str) -> Act:
    def act() -> None:
        text = Path(path).read_text()
        assert old in text, (path, old)
        writable(path).write_text(text.replace(old, new, 1))

    return act


def mode(path: str, bits: int) -> Act:
    return lambda: Path(path).chmod(bits)


def remove(path: str) -> Act:
    return lambda: shutil.rmtree(path) if Path(path).is_dir() else Path(path).unlink()


def copy(source: str, path: str) -> Act:
    return lambda: shutil.copy2(source, writable(path))


def copy_folder(source: Path, path: str) -> Act:
    return lambda: shutil.copytree(source, path)


def fetched(path: str) -> Act:
    """The file, or the folder, as the founder made it."""
    return lambda: _put_back(Path(path))


def _put_back(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
    kept = Path(os.environ["TEMPLATE"]) / path
    if kept.is_dir():
        shutil.copytree(kept, path)
    else:
        shutil.copy2(kept, path)


def command(text: str) -> Act:
    def act() -> None:
        assert main(shlex.split(text)) == 0

    return act


def founded_in(year: int) -> Act:
    """Found a federation in ``old`` by a clock that shows that year."""

    def act() -> None:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(federation_commands, "now", lambda: datetime(year, 1, 1, tzinfo=UTC))
            assert main(["federation", "init", "federation.toml", "--out", "old"]) == 0

    return act


_OPEN: list[socket.socket] = []


def _port() -> int:
    return int(re.findall(r":(\d+)", Path("kits/source-1/startup/endpoints.toml").read_text())[0])


def _limit(size: int) -> None:
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, resource.getrlimit(resource.RLIMIT_FSIZE)[1]))


def _unlimited() -> None:
    _limit(resource.getrlimit(resource.RLIMIT_FSIZE)[1])


def _listen() -> None:
    _OPEN.append(socket.create_server(("127.0.0.1", _port())))


def _allow_any_task() -> None:
    policy = Path(POLICY)
    policy.write_text(re.sub(r"(?m)^allowed-tasks = \[[^]]*\]", "allowed-tasks = []", policy.read_text()))
    assert main(["policy", "sign", SOURCE]) == 0


def _hang_up() -> None:
    while _OPEN:
        _OPEN.pop().close()


_STATE: list[sqlite3.Connection] = []


def _work_there() -> None:
    """Hold the state of a source's run, as its first process does."""
    Path(f"{SOURCE}/local/run").mkdir()
    _STATE.append(sqlite3.connect(f"{SOURCE}/local/run/state.sqlite", isolation_level=None))
    _STATE[0].execute("BEGIN EXCLUSIVE")


def _end_there() -> None:
    while _STATE:
        _STATE.pop().close()


# --- the tables -------------------------------------------------------------------------------------------------------

SIGN = command(f"policy sign {SOURCE}")
INIT = command(f"budget init {NOISY}")
SIMULATE = "simulate federation.toml --out taken"
INSPECT = f"kit inspect {SOURCE}"
CHECK = f"policy check {SOURCE} federation.toml"
LUNGS = "lungs.toml"
LEDGERS = "noisy/source-1/local/ledgers"


def simulated(
    line: str,
    hint: str = "",
    *,
    command: str = SIMULATE,
    harm: Act | None = None,
    follow: Act | None = None,
    again: str = SIMULATE,
) -> Wrong:
    """What ends a simulation before anything is trained; without it, the simulation comes to the folder of a run."""
    return Wrong(command, line, hint, harm=harm, follow=follow, again=again, then=FURTHER)


def setting(given: str, line: str, right: str, hint: str = "") -> Wrong:
    """A setting with a wrong value, which another value follows."""
    key = given.partition("=")[0]
    wrong, again = (f"{SIMULATE} --set {shlex.quote(value)}" for value in (given, f"{key}={right}"))
    return simulated(line, hint or rf"securefda config explain {key} says what it takes", command=wrong, again=again)


def in_file(data: str | bytes, line: str, hint: str) -> Wrong:
    """A federation's file that is none; a right one follows."""
    return simulated(line, hint, harm=write("federation.toml", data), follow=write("federation.toml", FEDERATION))


def in_federation(old: str, new: str, line: str, hint: str = "") -> Wrong:
    """A federation's file with one thing wrong; the right one follows."""
    return simulated(line, hint, harm=change("federation.toml", old, new), follow=fetched("federation.toml"))


def in_kit(file: str, harm: Act, line: str, hint: str = "fetch (the (site's startup )?kit|roster.json) again") -> Wrong:
    """A file of a kit's ``startup/`` that is not what the founder made; the founder's follows."""
    follow = fetched(f"{SOURCE}/startup")
    return Wrong(INSPECT, line, hint, harm=harm, follow=follow)


def usage(
    wrong: str, line: str, right: str, then: str = "", hint: str = r"securefda .*--help lists what there is"
) -> Wrong:
    """Arguments that the parser refuses."""
    return Wrong(wrong, line, hint, again=right, then=then)


ARGUMENTS = {
    "unknown-option": usage("--wxyz", "no such option: --wxyz", "--version"),
    "unknown-command": usage("bogus", "no such command 'bogus'", "--help"),
    "predict-with-a-setting": Wrong(
        "predict taken --data new.csv --set strategy.rounds=3",
        "strategy.rounds: only options of the task can be set here",
        "--set task.options",
        again="predict taken --data new.csv --set task.options.token=x",
        then="has no summary",
    ),
    "no-subcommand": usage("federation", "missing command", "federation --help"),
    "misspelt-subcommand": usage(
        "federation inti", "no such command 'inti'", "federation init --help", hint="did you mean init"
    ),
    "misspelt-command-near-two": usage("rn", "no such command 'rn'", "run --help", hint="did you mean run, runs?"),
    "no-argument": usage("run", "missing argument 'FEDERATION.toml'", "run --help"),
    "cut-option": usage(
        f"{SIMULATE} --sett a=b",
        "no such option: --sett",
        f"{SIMULATE} --set a=b",
        "a: unknown key",
        "did you mean .*--set",
    ),
    "one-argument-more": usage(f"{SIMULATE} more", r"got unexpected extra argument\(s\) \(more\)", SIMULATE, FURTHER),
    "option-without-value": usage(
        f"{SIMULATE} --seed", "'--seed' requires an argument", f"{SIMULATE} --seed 1", FURTHER
    ),
    "negative-seed": usage(f"{SIMULATE} --seed -1", "'--seed': must be at least 0", f"{SIMULATE} --seed 0", FURTHER),
    "seed-in-words": usage(f"{SIMULATE} --seed x", "'--seed': must be a whole number", f"{SIMULATE} --seed 1", FURTHER),
    "seed-of-77-bits": usage(
        f"{SIMULATE} --seed {10**23}", f"'--seed': must be at most {2**63 - 1}", f"{SIMULATE} --seed 7", FURTHER
    ),
    "unknown-format": usage(
        f"{SIMULATE} --format xml", "'xml' is not one of 'txt', 'json'", f"{SIMULATE} --format txt", FURTHER
    ),
    "nul-in-a-path": usage("simulate federation.toml --out 'a\0b'", "'--out': holds a NUL", SIMULATE, FURTHER),
    "port-of-five-nines": usage(
        "dashboard federation.toml --port 99999",
        "'--port': must be at most 65535",
        "dashboard federation.toml --port 0",
        "is not a folder",
    ),
    "evidence-without-roster": usage(
        "audit verify-evidence x.json",
        "missing option '--roster'",
        f"audit verify-evidence x.json --roster {SOURCE}/startup/roster.json",
        "x.json: is missing",
    ),
}

SETTINGS_OF_A_RUN = {
    "misspelt-key": Wrong(
        f"{SIMULATE} --set strategy.roundz=3",
        r"strategy\.roundz: unknown key \(--set\)",
        "did you mean strategy.rounds",
        again=f"{SIMULATE} --set strategy.rounds=3",
        then=FURTHER,
    ),
    "rounds-zero": setting("strategy.rounds=0", "strategy.rounds: must be a whole number of at least 1, is 0", "3"),
    "rounds-infinite": setting("strategy.rounds=1e400", "must be a whole number, not inf", "3"),
    "rounds-true": setting("strategy.rounds=true", "must be a whole number, not True", "3"),
    "rounds-of-67-bits": setting(
        "strategy.rounds=99999999999999999999", "an integer of more than 64 bits", "3", "no setting takes that"
    ),
    "rounds-and-a-half": setting("strategy.rounds=3.5", "must be a whole number, not 3.5", "3"),
    "rule-misspelt": setting(
        "strategy.rule=fedgb", "must be one of source_only, .* is 'fedgb'", "fedgp", r"did you mean fedgp\?"
    ),
    "warm-up-too-long": setting(
        "strategy.warm-up-rounds=9",
        "must be below the 3 rounds of the run, is 9",
        "2",
        "lower it, or raise strategy.rounds",
    ),
    "more-others-than-sources": setting(
        "privacy.min-others=5",
        "needs at least 6 sources, .*there are 3",
        "2",
        "add sources to federation.sources, or lower privacy.min-others",
    ),
    "unknown-device": setting(
        "training.target.device=tpu", "must be 'auto', 'cpu', 'cuda' or 'mps', not 'tpu'", "cpu", r"did you mean cpu\?"
    ),
    "listen-nowhere": setting("transport.listen=nope", "must be host:port with a port from 0", "127.0.0.1:0"),
    "both-sides-at-once": Wrong(
        f"{SIMULATE} --set training.learning-rate=1",
        "training.learning-rate: unknown key",
        "did you mean training.target.learning-rate",
        again=f"{SIMULATE} --set training.target.learning-rate=1",
        then=FURTHER,
    ),
    "key-of-another-table": Wrong(
        f"{SIMULATE} --set session.training-deadline-s=9",
        "session.training-deadline-s: unknown key",
        "did you mean transport.training-deadline-s",
        again=f"{SIMULATE} --set transport.training-deadline-s=9",
        then=FURTHER,
    ),
    "no-value": Wrong(
        f"{SIMULATE} --set strategy.rounds",
        "is not KEY=VALUE",
        "for example --set strategy.rounds=3",
        again=f"{SIMULATE} --set strategy.rounds=3",
        then=FURTHER,
    ),
    "a-table-for-a-value": Wrong(
        f"{SIMULATE} --set federation.name.x=3",
        "name is a value, not a table",
        again=f"{SIMULATE} --set federation.name=x",
        then=FURTHER,
    ),
    "unknown-environment": simulated(
        "SECUREFDA_STRATEGY_ROUNDZ: unknown setting",
        "did you mean SECUREFDA_STRATEGY_ROUNDS",
        harm=lambda: os.environ.update(SECUREFDA_STRATEGY_ROUNDZ="3"),
        follow=lambda: os.environ.update(SECUREFDA_STRATEGY_ROUNDS=os.environ.pop("SECUREFDA_STRATEGY_ROUNDZ")),
    ),
    "unknown-option-of-a-task": Wrong(
        "task check federation.toml --set task.options.noize=3",
        "task.options.noize: unknown option",
        "known options: .*noise|did you mean",
        again="task check federation.toml --site nobody --set task.options.noise=0.1",
        then="is no site",
    ),
}

FILES = {
    "missing": simulated("nowhere.toml: is missing", "check the path", command="simulate nowhere.toml --out taken"),
    "nearly-a-sample": Wrong(
        "run digit --out taken",
        "digit: is neither a file here nor the name of a sample",
        r"did you mean digits\? samples: amazon_reviews, colored_mnist, digit_domains, digits",
        again="run digits --out taken --set x=1",
        then="x: unknown key",
    ),
    "no-sample-at-all": Wrong(
        "simulate hospitals-of-ours --out taken",
        "hospitals-of-ours: is neither a file here nor the name of a sample",
        "samples: amazon_reviews, colored_mnist, digit_domains, digits",
        again="run digits --out taken --set x=1",
        then="x: unknown key",
    ),
    "a-folder": simulated(
        "kits: cannot be read: Is a directory", "check the path", command="simulate kits --out taken"
    ),
    "not-utf-8": in_file(b"\xff\xfe" + FEDERATION.encode(), "federation.toml: is not UTF-8 text", "save it as UTF-8"),
    "a-nul": in_file(FEDERATION + 'x = "a\0b"\n', r"not valid TOML: .*line 9", "remove that character"),
    "deeply-nested": in_file(
        f"x = {'[' * 2000}{']' * 2000}", "nested more than 32 levels deep", "no setting takes that"
    ),
    "not-toml": in_file("[federation\n", r"not valid TOML: .*line 1", "correct that place"),
    "json": in_file('{"federation": {}}', r"not valid TOML: .*line 1", "correct that place"),
    "text-without-quotes": in_file(
        "[federation]\nname = digits\n", r"not valid TOML: .*line 2", "text values need quotes"
    ),
    "a-key-twice": in_file(FEDERATION + "rounds = 4\n", r"not valid TOML: .*line 9", "stands twice: keep one"),
    "too-large": simulated(
        "is larger than 4194304 bytes",
        "check the path",
        harm=lambda: os.truncate("federation.toml", 3 * 2**30),
        follow=fetched("federation.toml"),
    ),
    "settings-of-a-target": simulated(
        "is a target's settings, not a federation's file",
        "aggregator start --config kits/target/local/settings.toml",
        command="simulate kits/target/local/settings.toml",
    ),
    "a-federation-for-a-source": Wrong(
        "source start --config federation.toml",
        "is a federation's file, not a source's settings",
        "KIT/local/settings.toml",
        again=f"source start --config {SETTINGS} --set strategy.rounds=1",
        then="unknown key",
    ),
    "one-source-twice": in_federation(
        '"source-2"', '"source-1"', "site source-1 is named twice", "every site has its own id"
    ),
    "a-source-that-is-the-target": in_federation(
        '"source-2"', '"target"', "site target is the target", "name it in federation.target or here, not in both"
    ),
    "two-sources": simulated(
        "needs at least 3 sources.*there are 2",
        "add sources to federation.sources, or lower privacy.min-others",
        harm=change("federation.toml", ', "source-3"', ""),
        again=f"{SIMULATE} --set privacy.min-others=1",
    ),
    "a-blank-in-a-name": in_federation(
        '"source-2"',
        '"So urce"',
        r"federation.sources.1: must be 1 to 63 lowercase letters, .*not 'So urce'",
        "config explain federation.sources",
    ),
    "no-such-module": Wrong(
        "task check federation.toml",
        "there is no module no_such, installed or in the current folder",
        "start in the folder that holds no_such.py",
        harm=change("federation.toml", "securefda.tasks.digits:Digits", "no_such:Task"),
        follow=write("no_such.py", ""),
        then="module no_such has no Task",
    ),
    "other-hospitals": Wrong(
        "task check federation.toml",
        "target is no domain of ColoredMNIST",
        "known: plus-90, plus-80, minus-90",
        harm=change("federation.toml", "securefda.tasks.digits:Digits", "securefda.tasks.colored_mnist:ColoredMnist"),
        follow=fetched("federation.toml"),
        again="task check federation.toml --site nobody",
        then="is no site",
    ),
    "folder-of-a-run": Wrong(
        SIMULATE,
        FURTHER,
        "name a new folder",
        again="simulate federation.toml --out new --set strategy.rounds=0",
        then="at least 1",
    ),
    "out-is-a-file": simulated(
        "--out: federation.toml is no folder",
        "name a new folder, or an empty one",
        command="simulate federation.toml --out federation.toml",
    ),
    "out-of-other-files": simulated(
        ", and is no run folder", "name a new folder, or an empty one", command="simulate federation.toml --out ."
    ),
    "no-sites-of-that-name": Wrong(
        "task check federation.toml --site nobody",
        "--site nobody: is no site of this federation",
        "sites: target, source-1",
        again="task check federation.toml --site target --set strategy.rounds=0",
        then="at least 1",
    ),
    "no-uci-files": Wrong(
        "task convert-uci-heart nowhere --out o",
        "nowhere/processed.cleveland.data: cannot be read",
        "one of four files named processed.HOSPITAL.data",
        follow=lambda: [
            Path("nowhere").mkdir(),
            *(
                Path("nowhere", f"processed.{name}.data").write_text("")
                for name in ("cleveland", "hungarian", "switzerland", "va")
            ),
        ],
        then="processed.cleveland.data",
    ),
    "a-file-for-a-run": Wrong(
        "dashboard federation.toml",
        "federation.toml: is not a folder",
        "name a run folder",
        again="dashboard taken --port 99999",
        then="at most 65535",
    ),
}

KITS = {
    "founded-already": Wrong(
        "federation init federation.toml --out kits",
        "kits: exists already",
        "name a new folder",
        again="federation init federation.toml --out more",
    ),
    "address-without-port": Wrong(
        "federation init federation.toml --out more --address nope",
        "--address: 'nope' is not host:port",
        "for example aggregator.example.org:8443",
        again="federation init federation.toml --out more --address aggregator.example.org:8443",
    ),
    "address-with-port-99999": Wrong(
        "federation init federation.toml --out more --address host:99999",
        "--address: port 99999 is not in 1 to 65535",
        again="federation init federation.toml --out more --address host:9999",
    ),
    "server-name-with-a-blank": Wrong(
        "federation init federation.toml --out more --server-name 'a b'",
        "'a b' is neither a host name nor an IP address",
        again="federation init federation.toml --out more --server-name a-b",
    ),
    "entity-of-nobody": Wrong(
        "federation init federation.toml --out more --entity source-9=X",
        "--entity source-9: is no site of this federation",
        "sites: target, source-1",
        again="federation init federation.toml --out more --entity source-1=X",
    ),
    "entity-without-name": Wrong(
        "federation init federation.toml --out more --entity source-1",
        "--entity source-1: is not SITE=VALUE",
        again="federation init federation.toml --out more --entity source-1=X",
    ),
    "enrolled-already": Wrong(
        "federation add kits source-1 --config federation.toml",
        "source-1: is enrolled already",
        "name another site",
        again="federation add kits source-4 --config federation.toml",
    ),
    "added-to-nothing": Wrong(
        "federation add nowhere source-4 --config federation.toml",
        "nowhere: is not a federation: it has no folder ca/",
        "name the folder that `securefda federation init` made",
        again="federation add kits source-4 --config federation.toml",
    ),
    "revoked-stranger": Wrong(
        "federation revoke kits source-9",
        "source-9: is not enrolled",
        "enrolled are: target, source-1",
        again="federation revoke kits source-3",
    ),
    "revoked-target": Wrong(
        "federation revoke kits target",
        "target: is the target, without which there is no federation",
        "federation renew FOLDER target --name HOST",
        again="federation renew kits target --name 127.0.0.1",
    ),
    "signed-no-roster": Wrong(
        f"federation sign {SOURCE} federation.toml",
        "federation.toml: is not a signed roster",
        "fetch roster.json again",
        again=f"federation sign {SOURCE} {SOURCE}/startup/roster.json",
        then="does not follow",
    ),
    "a-damaged-roster-at-the-ca": Wrong(
        "federation renew kits source-1",
        "kits/ca/roster.json: is not a signed roster",
        "fetch roster.json again",
        harm=change("kits/ca/roster.json", "{", ""),
        follow=fetched("kits/ca/roster.json"),
    ),
    "no-kit": Wrong("kit inspect nowhere", "nowhere: is missing", "check the path", again=INSPECT),
    "a-file-for-a-kit": Wrong(
        "kit inspect federation.toml",
        "is incomplete, or neither a kit's folder nor its package",
        "securefda kit package",
        again=INSPECT,
    ),
    "folder-for-a-package": Wrong(
        "kit unpack .",
        r"\.: is a folder, not a kit's package",
        "the file that securefda kit package has written",
        harm=command(f"kit package {SOURCE}"),
        again="kit unpack kits/source-1.tar --out unpacked",
    ),
    "root-for-a-kit": Wrong("kit package /", "/: is not a startup kit", "fetch the site's startup kit", again=INSPECT),
    "passphrase-for-what-holds-no-key": Wrong(
        "kit protect kits",
        "kits: holds no private keys",
        "name a startup kit",
        again=INSPECT,
    ),
    "wrong-fingerprint": Wrong(
        f"{INSPECT} --ca abc",
        "is not the CA with the expected fingerprint",
        "fetch the site's startup kit again",
        code=14,
        again=INSPECT,
    ),
    "package-over-a-file": Wrong(
        f"kit package {SOURCE} --out federation.toml",
        "federation.toml exists already",
        "name a new file",
        again=f"kit package {SOURCE} --out new.tar",
    ),
    "package-in-no-folder": Wrong(
        f"kit package {SOURCE} --out nowhere/x.tar",
        "--out: nowhere/x.tar is in a folder that does not exist",
        "name a file in a folder that exists",
        follow=lambda: Path("nowhere").mkdir(),
    ),
    "key-open-to-others": Wrong(
        INSPECT,
        "signing.key: is open to others",
        f"chmod 600 {SOURCE}/startup/signing.key",
        harm=lambda: Path(f"{SOURCE}/startup/signing.key").chmod(0o644),
        follow=lambda: Path(f"{SOURCE}/startup/signing.key").chmod(0o600),
    ),
    "roster-too-large": in_kit(
        "roster.json",
        lambda: os.truncate(writable(f"{SOURCE}/startup/roster.json"), 2**30),
        "roster.json: is larger than",
        "",
    ),
    "certificate-expired": Wrong(
        "kit inspect old/source-1",
        "tls.crt: expired at 2022",
        "renew it: securefda site renew KIT at the site",
        code=14,
        harm=founded_in(2020),
        follow=command("federation renew old source-1"),
    ),
    "port-taken": Wrong(
        "preflight kits/target",
        "the port is taken",
        "stop what listens there, or choose another port",
        harm=_listen,
        follow=_hang_up,
        prints=True,
    ),
    "preflight-of-nothing": Wrong(
        "preflight nowhere",
        "nowhere: is not a startup kit",
        "check the path",
        again="preflight kits/source-1 --address nope",
        then="is not host:port",
        prints=True,
    ),
}

KITS |= {
    "preflight-without-its-settings": Wrong(
        f"preflight {SOURCE} --offline --config nowhere.toml",
        "settings: nowhere.toml: is missing",
        "check the path",
        again=f"preflight {SOURCE} --offline",
        prints=True,
    ),
}

KITS |= {
    f"{name}-of-{kind}": in_kit(name, harm(f"{SOURCE}/startup/{name}"), line)
    for name, unreadable in (
        ("ca.pem", "is not a PEM certificate"),
        ("kit.json", "is not a kit's manifest"),
        ("roster.json", "roster.json: is not a signed roster"),
        ("tls.crt", "is not a PEM certificate"),
        ("endpoints.toml", "was changed after the CA signed"),
        ("tls.key", "is neither a PEM private key nor one that"),
        ("signing.key", "is neither a PEM private key nor one that"),
    )
    for kind, harm, line in (
        ("none", remove, f"{name}: is missing"),
        ("0-bytes", partial(write, data=b""), unreadable),
        ("noise", partial(write, data=bytes(range(200, 232))), unreadable),
    )
}

NEW = "site init source-4 --federation digits"
ASKED = "source-4/requested/request.json"
JOIN = "site join source-4 source-4.tar"
ADD = f"federation add kits source-4 --config federation.toml --request {ASKED}"
FOUND = "federation init federation.toml --requests requests --out more"


def _asked() -> None:
    """A request of each site of the federation, in ``requests``; each site's kit is in ``sites``."""
    Path("requests").mkdir()
    for site in ("target", "source-1", "source-2", "source-3"):
        reached = "--address 127.0.0.1:8443" if site == "target" else ""
        command(f"site init {site} --federation digits --out sites/{site} {reached}")()
        shutil.copy(f"sites/{site}/requested/request.json", f"requests/{site}.json")


def _added() -> Act:
    """The authority has enrolled source-4, which asked, and packaged what it signed."""
    return acts(command(NEW), command(ADD), command("kit package kits/source-4 --out source-4.tar"))


def _fingerprint() -> str:
    return parse_ca("ca.pem", Path("kits/ca/ca.pem").read_bytes()).fingerprint


def _joins() -> None:
    command(f"{JOIN} --ca {_fingerprint()}")()


SITES = {
    "kit-made-twice": Wrong(NEW, "source-4: exists already", "--out", harm=command(NEW), again=f"{NEW} --out new"),
    "kit-of-a-site-with-a-blank": Wrong(
        "site init 'So urce' --federation digits", "'So urce' is no valid name", "lower-case", again=NEW
    ),
    "site-called-ca": Wrong("site init ca --federation digits", "'ca' is reserved", "another site id", again=NEW),
    "no-federation-named": usage("site init source-4", "missing option '--federation'", NEW),
    "site-name-of-no-host": Wrong(
        f"{NEW} --name 'a b'", "'a b' is neither a host name nor an IP address", again=f"{NEW} --name a-b"
    ),
    "renewed-no-kit": Wrong(
        "site renew nowhere",
        "nowhere/startup/tls.crt: is missing",
        "name the site's startup kit",
        again=f"site renew {SOURCE}",
    ),
    "renewed-twice": Wrong(
        f"site renew {SOURCE}",
        "requested: exists already: a request is under way",
        "remove that folder",
        harm=command(f"site renew {SOURCE}"),
        follow=remove(f"{SOURCE}/requested"),
    ),
    "no-request-to-show": Wrong(
        f"site show {ASKED}", "request.json: is missing", "securefda site init", follow=command(NEW)
    ),
    "request-of-another-site": Wrong(
        ADD.replace("kits source-4", "kits source-5"),
        "is the request of source-4, not of source-5",
        "name the request of source-5, or the site source-4",
        harm=command(NEW),
        again=ADD,
    ),
    "entity-beside-a-request": Wrong(
        f"{ADD} --entity X",
        "--entity: cannot be given with --request: the request says it",
        "leave --entity out",
        harm=command(NEW),
        again=ADD,
    ),
    "name-beside-a-request": Wrong(
        f"federation renew kits source-4 --request {ASKED} --name x",
        "--name: cannot be given with --request",
        "leave --name out",
        again=f"federation renew kits source-4 --request {ASKED}",
        then="request.json: is missing",
    ),
    "fingerprint-without-a-request": Wrong(
        "federation renew kits source-3 --fingerprint abc",
        "--fingerprint: is of a request, and there is none",
        "--request FILE",
        again="federation renew kits source-3",
    ),
    "founded-with-another-fingerprint": Wrong(
        f"{FOUND} --fingerprint source-1={'00' * 32}",
        "request of source-1: has the fingerprint",
        "do not sign it",
        harm=_asked,
        again=FOUND,
    ),
    "fingerprint-of-no-site": Wrong(
        f"{FOUND} --fingerprint source-9={'00' * 32}",
        "--fingerprint source-9: is no site of this federation",
        "sites: target, source-1",
        harm=_asked,
        again=FOUND,
    ),
    "joined-without-a-fingerprint": Wrong(
        JOIN, "--ca: is needed: this kit knows no CA yet", "--ca FINGERPRINT", harm=_added(), follow=_joins
    ),
    "keys-to-unpack-that-are-at-home": Wrong(
        "kit unpack source-4.tar --out out",
        "source-4.tar: holds no private keys",
        "securefda site join KIT PACKAGE",
        harm=_added(),
        follow=_joins,
        again=JOIN,
    ),
    "kit-that-not-all-have-signed": Wrong(
        "kit inspect source-4",
        "source-4/startup/roster.json: is not signed by source-4",
        "wait for the authority's package with all signatures",
        harm=acts(_added(), _joins),
        follow=acts(
            command("federation merge kits source-4/local/roster.signed.json"),
            command("site join source-4 kits/source-4"),
        ),
    ),
}

POLICIES = {
    "unknown-template": Wrong(
        "policy template strickt",
        "template strickt: does not exist",
        "there are strict, clinical-default",
        again="policy template strict",
    ),
    "template-over-a-file": Wrong(
        "policy template strict --out federation.toml",
        "federation.toml exists already",
        "name a new file",
        again="policy template strict --out new.toml",
    ),
    "changed-after-signing": Wrong(
        CHECK,
        "policy.toml: was changed after it was signed",
        "policy explain.*policy sign",
        harm=change(POLICY, "min-others = 2", "min-others = 1"),
        follow=SIGN,
        prints=True,
    ),
    "check-of-nothing": Wrong(
        "policy check nowhere federation.toml", "nowhere: is missing", "check the path", again=CHECK, prints=True
    ),
    "check-of-a-kit-for-another": Wrong(
        f"{CHECK} --site source-2", "--site source-2: no policy is left for it", "leave it out", again=CHECK
    ),
    "explain-for-an-unknown-site": Wrong(
        f"policy explain {SOURCE} --site x",
        "--site x: is no site of this federation",
        "leave it out.*sites: target, source-1",
        again=f"policy explain {SOURCE} --site source-1",
    ),
    "explain-a-kit-for-another": Wrong(
        f"policy explain {SOURCE} --site source-2",
        "--site source-2: kits/source-1 is the kit of source-1",
        "leave it out",
        again=f"policy explain {SOURCE}",
    ),
    "explain-a-file-for-an-unknown-site": Wrong(
        "policy explain loose.toml federation.toml --site x",
        "--site x: is no source of the federation in federation.toml",
        "sources: source-1, source-2",
        harm=copy(POLICY, "loose.toml"),
        again="policy explain loose.toml federation.toml --site source-1",
    ),
    "check-of-a-kit-of-another-federation": Wrong(
        f"policy check {SOURCE} {LUNGS}",
        rf"{POLICY}: source-1 is no source of federation lungs \({LUNGS}\)",
        r"name kits of its sources \(clinic-1, clinic-2, clinic-3\), or the federation of source-1",
        harm=write(LUNGS, FEDERATION.replace("digits", "lungs", 1).replace("source-", "clinic-")),
        again=CHECK,
    ),
    "check-of-a-target": Wrong(
        "policy check kits/target federation.toml",
        r"kits/target/local/policy.toml: target is no source of federation digits \(federation.toml\)",
        r"name kits of its sources \(source-1, .*\), or the federation of target",
        again=CHECK,
    ),
    "sign-without-policy": Wrong(
        f"policy sign {SOURCE}",
        "policy.toml: is missing",
        "check the path",
        harm=remove(POLICY),
        follow=command(f"policy template clinical-default --out {POLICY}"),
        then="--name: is missing: people sign by name and role",
    ),
    "sign-a-misspelt-key": Wrong(
        f"policy sign {SOURCE}",
        "min-otherz: unknown key",
        "did you mean min-others",
        harm=change(POLICY, "min-others", "min-otherz"),
        follow=change(POLICY, "min-otherz", "min-others"),
    ),
}

BUDGETS = {
    "no-ledger": Wrong(
        f"budget show {NOISY}",
        "training-rows.sqlite: is missing; nothing trains without it",
        "securefda budget init --config FILE",
        code=11,
        follow=INIT,
    ),
    "ledger-twice": Wrong(
        f"budget init {NOISY}", "exists already$", "budget show", code=11, harm=INIT, again=f"budget show {NOISY}"
    ),
    "ledger-damaged": Wrong(
        f"budget show {NOISY}",
        "cannot be used: file is not a database",
        "put the newest copy back",
        code=11,
        harm=acts(INIT, lambda: shutil.copytree(LEDGERS, "copy"), write(f"{LEDGERS}/training-rows.sqlite", "garbage")),
        follow=copy("copy/training-rows.sqlite", f"{LEDGERS}/training-rows.sqlite"),
    ),
    "ledger-copied": Wrong(
        f"budget show {NOISY}",
        "is a copy, or was put back",
        "budget accept",
        code=11,
        harm=acts(
            INIT, lambda: shutil.copytree(LEDGERS, "copy"), remove(LEDGERS), lambda: shutil.move("copy", LEDGERS)
        ),
        follow=command(f"budget accept {NOISY} --reason moved"),
    ),
}

AUDITS = {
    "a-run-for-a-log": Wrong(
        f"audit verify {RUN[:6]}",
        f"{RUN[:6]}: is not there",
        f"the run behind it: --run {RUN[:6]}",
        again=f"audit verify {LOG} --run {RUN[:6]}",
    ),
    "no-folder-of-runs": Wrong(
        "runs ls nowhere", "nowhere: there is no such folder", "securefda runs ls FOLDER", again="runs ls ."
    ),
    "too-many-witnesses": Wrong(
        f"audit verify {LOG} --witnesses 99",
        "the roster has 3 other sites than source-1",
        again=f"audit verify {LOG} --witnesses 1",
    ),
    "no-evidence": Wrong(
        f"audit verify-evidence federation.toml --roster {SOURCE}/startup/roster.json",
        "federation.toml: is no evidence",
        again=f"audit verify-evidence nowhere.json --roster {SOURCE}/startup/roster.json",
        then="nowhere.json: is missing",
    ),
}

PROCESSES = {
    "unsigned-policy": Wrong(
        f"source start --config {SETTINGS}",
        "policy.sig: is missing",
        "policy explain.*policy sign",
        harm=remove(f"{SOURCE}/local/policy.sig"),
        follow=acts(SIGN, lambda: Path(f"{SOURCE}/startup/tls.key").chmod(0o644)),
        then="tls.key: is open to others",
    ),
    "no-policy": Wrong(
        f"source start --config {SETTINGS}",
        "policy.toml: is missing",
        "policy template clinical-default --out",
        harm=remove(POLICY),
        follow=command(f"policy template clinical-default --out {POLICY}"),
        then="changed after it was signed",
    ),
    "state-damaged": Wrong(
        f"source start --config {SETTINGS}",
        "state.sqlite: file is not a database",
        "name another folder with --out",
        code=1,
        harm=acts(lambda: Path(f"{SOURCE}/local/run").mkdir(), write(f"{SOURCE}/local/run/state.sqlite", "garbage")),
        again=f"source start --config {SETTINGS} --out federation.toml",
        then="federation.toml",
    ),
    "a-second-process-of-a-source": Wrong(
        f"source start --config {SETTINGS}",
        "state.sqlite: another process uses it",
        "stop it, or name another --out folder",
        harm=_work_there,
        follow=acts(_end_there, lambda: Path(f"{SOURCE}/startup/tls.key").chmod(0o644)),
        then="tls.key: is open to others",
    ),
    "module-not-there": Wrong(
        f"source start --config {SETTINGS} --set task.factory=no_such_task:Task",
        "there is no module no_such_task",
        "start in the folder that holds no_such_task.py",
        harm=_allow_any_task,
        follow=write("no_such_task.py", ""),
        then="has no Task",
    ),
}

FULL = {
    f"full-disk-for-{name}": Wrong(
        command, "cannot be written: File too large", "free disk space", harm=partial(_limit, 0), follow=_unlimited
    )
    for name, command in (
        ("a-template", "policy template strict --out new.toml"),
        ("a-package", f"kit package {SOURCE} --out new.tar"),
        ("kits", "federation init federation.toml --out more"),
        ("a-signature", f"policy sign {SOURCE}"),
        ("a-roster", "federation renew kits source-1"),
    )
}
"""No file may grow, which is what a full disk comes to."""

START = f"source start --config {SETTINGS}"
STARTED = mode(f"{SOURCE}/startup/tls.key", 0o644)
"""With it a start ends at the next thing, before anything is trained."""
OWNER = "run as the user that owns it, or give this user the permission"


def unreadable(path: str, command: str, line: str, then: str = "", *, follow: Act | None = None) -> Wrong:
    """A file or folder that another user keeps for itself, who then lets this one read it."""
    given = mode(path, 0o700 if "." not in path.rpartition("/")[2] else 0o600)
    return Wrong(command, line, OWNER, harm=mode(path, 0), follow=acts(given, *([follow] if follow else [])), then=then)


def unwritable(path: str, command: str, line: str, hint: str, then: str = "", *, follow: Act | None = None) -> Wrong:
    """A folder that this user may read alone; then it may write."""
    given = acts(mode(path, 0o700), *([follow] if follow else []))
    made = partial(Path(path).mkdir, exist_ok=True)
    return Wrong(command, line, hint, harm=acts(made, mode(path, 0o500)), follow=given, then=then)


OPEN = "tls.key: is open to others"
PERMISSIONS = {
    "key-of-another-user": unreadable(
        f"{SOURCE}/startup/signing.key", START, "signing.key: cannot be read: Permission denied", OPEN, follow=STARTED
    ),
    "policy-of-another-user": unreadable(
        POLICY, START, "policy.toml: cannot be read: Permission denied", OPEN, follow=STARTED
    ),
    "settings-of-another-user": unreadable(SETTINGS, START, "settings.toml' is not readable", OPEN, follow=STARTED),
    "kit-of-another-user": unreadable(OTHER, f"policy explain {OTHER}", f"path '{OTHER}' is not readable"),
    "authority-of-another-user": unreadable(
        "kits/ca/ca.key", "federation renew kits source-3", "ca.key: cannot be read: Permission denied"
    ),
    "federation-of-another-user": unreadable(
        "federation.toml", SIMULATE, "federation.toml: cannot be read: Permission denied", FURTHER
    ),
    "local-folder-that-cannot-be-written": unwritable(
        f"{SOURCE}/local",
        f"policy sign {SOURCE}",
        "cannot be written: Permission denied",
        "check the folder's permissions",
    ),
    "state-folder-that-cannot-be-written": unwritable(
        f"{SOURCE}/local/run", START, "state.sqlite: cannot be used: Permission denied", OWNER, OPEN, follow=STARTED
    ),
    "ledger-that-cannot-be-written": Wrong(
        f"budget reset {NOISY} --reason new --yes",
        "cannot be written: Permission denied; nothing trains without it",
        OWNER,
        code=11,
        harm=acts(INIT, lambda: [path.chmod(0o400) for path in Path(LEDGERS).glob("*.sqlite")]),
        follow=lambda: [path.chmod(0o600) for path in Path(LEDGERS).glob("*.sqlite")],
    ),
    "out-folder-that-cannot-be-written": unwritable(
        "full", "federation init federation.toml --out full/kits", "full/kits: cannot be written", "permissions"
    ),
}
"""As a user who owns nothing but what the entry gives; a test that runs as root gives up root's rights for it."""

UNLABELLED_TASK = """\
from securefda.tasks import Unlabelled
from securefda.tasks.digits import Digits

class Bare(Digits):
    def train_data(self, site):
        return Unlabelled(super().train_data(site).features) if site in SITES else super().train_data(site)
"""
TARGET_SETTINGS = "kits/target/local/settings.toml"
NO_LABELS = "training.target.labels=none"
NEEDS_LABELS = 'fedda_auto needs the labels of the target\'s training rows, and training{}.labels is "none"'
FITTING = "rules that run with these labels: source_only, fada_attention"
WITHOUT_LABELS = change(TARGET_SETTINGS, "[training]\n", '[training]\nlabels = "none"\n')
OF_SOURCES = change(TARGET_SETTINGS, '"fedda_auto"', '"source_only"')


def bare_at(*sites: str) -> Act:
    """A task of one's own, in a module of its own, that gives no labels at these sites."""
    name = f"bare_{'_'.join(sites).replace('-', '_')}"
    factory = change("federation.toml", "securefda.tasks.digits:Digits", f"{name}:Bare")
    return acts(write(f"{name}.py", f"{UNLABELLED_TASK}\nSITES = {sites}\n"), factory)


ATTENTION = f"--set {NO_LABELS} --set strategy.rule=fada_attention --set strategy.warm-up-rounds=0"
ATTENDS = f"simulate federation.toml --out attended {ATTENTION} --set strategy.rounds=1"
LABELS = {
    "labels-where-none-belong": Wrong(
        f"{SIMULATE} --set strategy.rule=fada_attention",
        "fada_attention makes no use of the labels of the target's training rows, and training.target.labels is",
        'set training.target.labels = "none", or a rule that uses them',
        again=f"{SIMULATE} {ATTENTION}",
        then=FURTHER,
    ),
    "clusters-of-fewer-rows-than-classes": Wrong(
        f"{ATTENDS} --set strategy.attention-rows=9",
        "9 rows cannot be put into 10 clusters",
        "raise strategy.attention-rows",
        again=f"{ATTENDS} --set strategy.attention-rows=40",
    ),
    "a-bound-of-attention-beyond-the-policies": Wrong(
        f"{ATTENDS} --set strategy.attention-bound=2",
        "policy refuses limits.attention-bound-max: asked 2, allowed at most 1",
        "lower strategy.attention-bound at the aggregator",
        again=f"{ATTENDS} --set strategy.attention-bound=1 --fresh",
        code=10,
    ),
    "a-rule-that-needs-labels": Wrong(
        f"{SIMULATE} --set {NO_LABELS}",
        NEEDS_LABELS.format(".target"),
        FITTING,
        again=f"{SIMULATE} --set {NO_LABELS} --set strategy.rule=source_only",
        then=FURTHER,
    ),
    "a-rule-that-needs-labels-at-preflight": Wrong(
        "preflight kits/target",
        NEEDS_LABELS.format(""),
        FITTING,
        harm=WITHOUT_LABELS,
        follow=OF_SOURCES,
        prints=True,
    ),
    "a-best-model-without-labels": Wrong(
        f"{SIMULATE} --set {NO_LABELS} --set strategy.rule=source_only --set strategy.validation-share=0.2",
        "strategy.validation-share: chooses a model by labels of the target's training rows",
        "set it to 0",
        again=f"{SIMULATE} --set {NO_LABELS} --set strategy.rule=source_only --set strategy.validation-share=0",
        then=FURTHER,
    ),
    "a-variance-beside-a-ledger": Wrong(
        f"{SIMULATE} --set strategy.variance=cross-fitted --set training.target.dp.noise-multiplier=1",
        "strategy.variance: its ledger counts the steps alone",
        'set it to "steps"',
        again=f"{SIMULATE} --set strategy.variance=steps --set training.target.dp.noise-multiplier=1",
        then=FURTHER,
    ),
    "a-step-without-rows-to-validate-it": Wrong(
        f"{SIMULATE} --set strategy.step=validated",
        'strategy.step: "validated" needs rows of the target that it does not train on',
        "set strategy.validation-share, for example to 0.2",
        again=f"{SIMULATE} --set strategy.step=validated --set strategy.validation-share=0.2",
        then=FURTHER,
    ),
    "a-beta-per-layer-from-single-steps": Wrong(
        f"{SIMULATE} --set strategy.beta-per-layer=true --set strategy.rule=fedgp_filtered_auto",
        "strategy.beta-per-layer: must be false, fedgp_filtered_auto with the mean-field estimator takes the",
        "",
        again=f"{SIMULATE} --set strategy.beta-per-layer=true --set strategy.rule=fedgp_auto",
        then=FURTHER,
    ),
    "noise-without-labels": Wrong(
        f"{SIMULATE} --set {NO_LABELS} --set strategy.rule=source_only --set training.target.dp.noise-multiplier=1",
        "training.target.dp.noise-multiplier: adds noise to training on given labels",
        "set it to 0",
        again=f"{SIMULATE} --set {NO_LABELS} --set strategy.rule=source_only",
        then=FURTHER,
    ),
    "pseudo-labels-without-warm-up": Wrong(
        f"{SIMULATE} --set training.target.labels=pseudo --set strategy.warm-up-rounds=0",
        'strategy.warm-up-rounds: is 0, and training.target.labels is "pseudo"',
        "set it to 1 or more",
        again=f"{SIMULATE} --set training.target.labels=pseudo --set strategy.warm-up-rounds=1",
        then=FURTHER,
    ),
    "a-rule-chosen-by-errors-on-pseudo-labels": Wrong(
        f"{SIMULATE} --set training.target.labels=pseudo --set strategy.rule=auto",
        'strategy.rule: auto needs the labels .* training.target.labels is "pseudo"',
        "rules that run with these labels: fedda, fedgp",
        again=f"{SIMULATE} --set training.target.labels=pseudo --set strategy.rule=fedgp",
        then=FURTHER,
    ),
    "pseudo-labels-of-numbers": Wrong(
        "task check federation.toml --site target --set training.target.labels=pseudo",
        "task RadialBasis: does not say how sure a model is",
        "define guesses",
        harm=change("federation.toml", "securefda.tasks.digits:Digits", "securefda.tasks.rbf:RadialBasis"),
        follow=fetched("federation.toml"),
        prints=True,
    ),
    "labels-of-a-source": simulated(
        r"training\.source\.labels: unknown key", command=f"{SIMULATE} --set training.source.labels=none"
    ),
    "a-task-that-gives-no-labels": Wrong(
        "task check federation.toml --site target",
        "target, train: the 100 rows have no labels",
        'labels = "none" in the target\'s training settings: securefda config explain training.labels',
        harm=bare_at("target"),
        again=f"task check federation.toml --site target --set {NO_LABELS} --set strategy.rule=source_only",
        prints=True,
    ),
    "a-source-without-labels": Wrong(
        f"task check federation.toml --set {NO_LABELS} --set strategy.rule=source_only",
        r"source-1, train: the \d+ rows have no labels",
        "a source trains on labelled rows alone",
        harm=bare_at("target", "source-1"),
        follow=acts(fetched("federation.toml"), bare_at("target")),
        prints=True,
    ),
}
"""What needs labels of the target that it does not have."""

MIXED_UP = {
    **{
        f"kits-for-a-kit-{name}": Wrong(
            f"{command} kits{rest}",
            "kits: is not a startup kit: it has no folder startup/",
            f"name one of the kits in it: kits/source-1, {OTHER}, kits/source-3, kits/target",
            again=f"{command} {SOURCE}{rest}",
        )
        for name, command, rest in (
            ("explained", "policy explain", ""),
            ("signed", "policy sign", ""),
            ("inspected", "kit inspect", ""),
            ("packaged", "kit package", " --out source-1.tar"),
            ("compared", "policy check", " federation.toml"),
        )
    },
    "policy-of-a-target-signed": Wrong(
        "policy sign kits/target",
        "kits/target: is the kit of a target, which has no policy",
        "name the kit of a source; .*securefda policy explain kits/target",
        again=f"policy sign {SOURCE}",
    ),
    "kits-for-settings": Wrong(
        "config show kits",
        "kits: is not a startup kit",
        f"name one of the kits in it: {SOURCE}",
        again=f"config show {SOURCE}",
    ),
    "settings-of-a-kit-beside-a-federation": Wrong(
        f"task check federation.toml --config {SETTINGS}",
        "--config: is of a kit's site",
        "leave it out",
        again="task check federation.toml --site nobody",
        then="is no site",
    ),
    "kit-for-settings-of-a-process": Wrong(
        f"source start --config {SOURCE}",
        f"{SOURCE}: cannot be read: Is a directory",
        f"name the settings in it: {SETTINGS}",
        follow=STARTED,
        again=START,
        then=OPEN,
    ),
    "folder-for-its-federation": Wrong(
        f"policy explain {POLICY} heart",
        "heart: cannot be read: Is a directory",
        "name the federation in it: heart/federation.toml",
        harm=acts(lambda: Path("heart").mkdir(), copy("federation.toml", "heart/federation.toml")),
        again=f"policy explain {POLICY} heart/federation.toml",
    ),
    "policy-checked-with-a-folder": Wrong(
        f"policy check {SOURCE} kits",
        "kits: is a folder, and the last argument is what the policies are compared with",
        "end with a FEDERATION.toml, the name of a sample",
        again=CHECK,
    ),
    "request-of-a-million-bytes": Wrong(
        "site show large.json",
        "large.json: is larger than 65536 bytes",
        "check the path",
        harm=write("large.json", b"{" * 1_000_000),
        follow=command(NEW),
        again=f"site show {ASKED}",
    ),
}
"""One thing where another belongs."""

HEART = "new heart --tabular tables/clinic.csv --label ill"
HEART_TABLES = Path(__file__).parents[2] / "examples" / "heart_tables"


def no_table(harm: Act, line: str, hint: str = "check the path") -> Wrong:
    """Something that has the name of the target's table; the table follows."""
    made = acts(lambda: Path("tables").mkdir(), harm)
    return Wrong(HEART, line, hint, harm=made, follow=acts(remove("tables"), copy_folder(HEART_TABLES, "tables")))


DAMAGED = {
    "figures-that-are-no-json": Wrong(
        "runs show taken",
        "taken/metrics.jsonl: line 1 is not JSON",
        "put the file back as the run wrote it",
        harm=write("taken/metrics.jsonl", b"\x00\xff garbage\n"),
        follow=fetched("taken/metrics.jsonl"),
    ),
    "a-roster-that-is-signed-already": Wrong(
        f"federation sign {SOURCE} {SOURCE}/startup/roster.json",
        "epoch 1 does not follow epoch 1 of this kit",
        "there is nothing to sign",
        again=INSPECT,
    ),
    "a-log-of-junk": Wrong(
        "audit reconcile damaged",
        "audit log damaged: has no log that can be read: .*checkpoint: ",
        "put it back as its site wrote it",
        harm=acts(lambda: Path("damaged/tile").mkdir(parents=True), write("damaged/checkpoint", b"\x00\xff")),
        again="audit reconcile damaged --roster nowhere.json",
        follow=acts(remove("damaged"), copy_folder(Path(LOG), "damaged")),
        then="nowhere.json: is missing",
    ),
}
"""Files that a command wrote and that are no longer what it wrote."""


def piped(path: str) -> Act:
    """A named pipe, into which nobody writes, in place of a file."""
    return acts(remove(path), lambda: os.mkfifo(path))


WITHOUT_END = {
    "a-federation-that-is-a-pipe": simulated(
        "federation.toml: cannot be read: it is no regular file",
        "check the path",
        harm=piped("federation.toml"),
        follow=fetched("federation.toml"),
    ),
    "figures-that-are-a-pipe": Wrong(
        "runs show taken",
        "taken/metrics.jsonl: cannot be used: it is no regular file",
        "check the path",
        harm=piped("taken/metrics.jsonl"),
        follow=fetched("taken/metrics.jsonl"),
    ),
    "a-table-that-is-a-device": no_table(
        lambda: Path("tables/clinic.csv").symlink_to("/dev/zero"), "clinic.csv: cannot be read: it is no regular file"
    ),
    "a-table-of-gigabytes": no_table(
        acts(write("tables/clinic.csv", ""), lambda: os.truncate("tables/clinic.csv", 5 * 2**30)),
        "clinic.csv: cannot be read: it has more than 1024 MiB",
    ),
    "unpacked-into-a-link-to-itself": Wrong(
        "kit unpack kits/source-1.tar --out loop",
        "loop: cannot be (used|written): Too many levels of symbolic links",
        "check the",
        harm=acts(command(f"kit package {SOURCE}"), lambda: Path("loop").symlink_to("loop")),
        again="kit unpack kits/source-1.tar --out unpacked",
    ),
}
"""What a reader would never come to the end of."""


def images(folder: str, classes: tuple[str, ...], each: int) -> Act:
    """Grey images in a folder for each class."""

    def act() -> None:
        for label in classes:
            Path(folder, label).mkdir(parents=True)
            for number in range(each):
                Image.new("L", (16, 16), number).save(Path(folder, label, f"{number}.png"))

    return act


MINE = {
    "too-few-images": Wrong(
        "new pictures --images scans",
        "scans: has 4 images, and four made-up sites need 70 at least",
        "add images",
        harm=images("scans", ("dog", "cat"), 2),
        follow=acts(remove("scans"), images("scans", ("dog", "cat"), 40)),
    ),
    **{
        f"{name}-over-a-file": Wrong(
            f"{command} --out federation.toml",
            "--out: federation.toml exists already",
            "name a new file",
            again=f"{command} --out {new}",
            then=then,
        )
        for name, command, new, then in (
            ("predictions", "predict taken --data federation.toml", "new.csv", "has no summary"),
            ("a-model", "export taken --format onnx", "new.onnx", "has no summary"),
            ("a-page", f"audit report {LOG}", "new.html", "double-release"),
            ("a-roster", f"federation sign {SOURCE} {SOURCE}/startup/roster.json", "new.json", "epoch 1 does not"),
        )
    },
}
"""Files of the user's: too few of them, or one where a command would write."""

EXACT = "config show federation.toml --set strategy.rule=fedgp_auto --set strategy.estimator"
ATTENTION = "--set strategy.rule=fada_attention --set training.labels=none"
GAINS = f"config show kits/target {ATTENTION} --set strategy.attention-gain"
COLORED = "bench accuracy --suite colored-mnist"

NEARLY = {
    "no-key-to-explain": Wrong(
        "config explain ''", "KEY: is empty", "name a key, such as", again="config explain strategy.rounds"
    ),
    "exact-estimator-at-sum": Wrong(
        f"{EXACT}=exact", "needs the target's single steps", "mean-field", again=f"{EXACT}=mean-field"
    ),
    "exact-gains-at-sum-are-not-shown": Wrong(
        f"{GAINS}=exact", "needs updates that the target does not see", "first-order", again=f"{GAINS}=first-order"
    ),
    "predictions-with-files-of-nowhere": Wrong(
        "predict taken --data federation.toml --data-dir nowhere",
        "--data-dir: nowhere is missing",
        "name the folder of the task's files",
        again="predict taken --data federation.toml --data-dir kits",
        then="has no summary",
    ),
    "a-kit-of-a-variable-that-is-not-set": usage("policy sign ''", "'KIT': is empty", f"policy sign {SOURCE}"),
    "a-run-folder-of-a-variable-that-is-not-set": usage(
        "simulate federation.toml --out ''", "'--out': is empty", SIMULATE, FURTHER
    ),
    "one-kit-of-two-is-empty": usage(
        f"policy check {SOURCE} '' federation.toml", "'POLICY...': is empty", f"policy check {SOURCE} federation.toml"
    ),
    "a-federation-that-is-no-policy": Wrong(
        "policy explain federation.toml",
        "federation.toml: is a federation's file, not a site's policy",
        "name a kit, or its local/policy.toml",
        again=f"policy explain {POLICY}",
    ),
    "settings-that-are-no-policy": Wrong(
        "policy explain copied.toml",
        "copied.toml: is a source's settings, not a site's policy",
        "name a kit, or its local/policy.toml",
        harm=copy(SETTINGS, "copied.toml"),
        again=f"policy explain {SOURCE}",
    ),
    "a-template-without-a-name": Wrong(
        "policy template ''", "template '': does not exist", "there are strict", again="policy template strict"
    ),
    "accuracy-of-files-of-nowhere": Wrong(
        f"{COLORED} --data-dir nowhere",
        "--data-dir: nowhere is missing",
        "name the folder that holds its mnist/",
        again=f"{COLORED} --data-dir kits --rules foo",
        then="there is no 'foo'",
    ),
    "accuracy-into-a-file": Wrong(
        "bench accuracy --suite digits --out federation.toml",
        "federation.toml: cannot be written: File exists",
        "name another folder with --out",
        again="bench accuracy --suite digits --out new --rules foo",
        then="there is no 'foo'",
    ),
    "folders-without-images": Wrong(
        "new pictures --images kits",
        "kits: holds no images",
        "DIR/SITE/CLASS/",
        follow=images("scans", ("dog", "cat"), 40),
        again="new pictures --images scans",
    ),
    "a-table-of-no-text": no_table(
        write("tables/clinic.csv", bytes(range(256))), "clinic.csv: is no text", "name a CSV file"
    ),
}
"""What comes close to something that there is."""

TABLES = (
    NEARLY,
    MIXED_UP,
    WITHOUT_END,
    MINE,
    DAMAGED,
    PERMISSIONS,
    FULL,
    ARGUMENTS,
    SETTINGS_OF_A_RUN,
    FILES,
    KITS,
    SITES,
    POLICIES,
    BUDGETS,
    AUDITS,
    PROCESSES,
    LABELS,
)
EVERY = {name: wrong for table in TABLES for name, wrong in table.items()}

# --- the test ---------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="session")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A federation's file, its kits, kits that train with noise, a log, and the folder of a run."""
    folder = tmp_path_factory.mktemp("wrong") / "template"
    folder.mkdir()
    (folder / "federation.toml").write_text(FEDERATION)
    address = f"127.0.0.1:{free_port()}"
    file, kits = str(folder / "federation.toml"), str(folder / "kits")
    assert main(["federation", "init", file, "--out", kits, "--address", address]) == 0
    found_noisy(folder / "noisy")
    Party(folder / "logs").write()
    (folder / "taken").mkdir()
    (folder / "taken" / "metrics.jsonl").write_text("")
    return folder


@pytest.fixture
def place(template: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    folder = Path(shutil.copytree(template, tmp_path / "here"))
    monkeypatch.chdir(folder)
    monkeypatch.setenv("TEMPLATE", str(template))
    for name in ("SECUREFDA_STRATEGY_ROUNDZ", "SECUREFDA_STRATEGY_ROUNDS"):
        monkeypatch.delenv(name, raising=False)
    yield folder
    _unlimited()
    _hang_up()
    _end_there()
    for name in ("SECUREFDA_STRATEGY_ROUNDZ", "SECUREFDA_STRATEGY_ROUNDS"):
        os.environ.pop(name, None)


def contents(folder: Path) -> dict[str, str]:
    """Every file by the digest of what is in it."""
    found = {}
    for where, folders, names in os.walk(folder):
        folders[:] = {*folders} - {"__pycache__"}
        for path in (f"{where}/{name}" for name in names):
            if os.path.isfile(path) and os.path.getsize(path) < HASHED_BYTES:  # noqa: PTH113, PTH202 - 400 times 100 files
                found[path] = _digest(Path(path))
    return found


def _digest(path: Path) -> str:
    if not os.access(path, os.R_OK):
        return f"unreadable, {path.stat().st_size} bytes, changed {path.stat().st_mtime_ns}"
    return hashlib.sha256(path.read_bytes()).hexdigest()


def error_of(code: int, err: str) -> tuple[str, str]:
    """The one error line and its hint, or nothing where the command passed."""
    for words in NOT_OURS:
        assert words not in err, err
    errors = [line for line in err.splitlines() if line.startswith("error: ")]
    hints = [line for line in err.splitlines() if line.startswith("hint: ")]
    assert len(errors) == (code != 0), err
    assert len(hints) <= 1, err
    return (errors or [""])[0], (hints or [""])[0]


def run(text: str, capsys: Capture) -> tuple[int, str, str]:
    capsys.readouterr()
    with plain_user():
        code = main(shlex.split(text))
    out, err = capsys.readouterr()
    return code, out, err


def try_what_it_says(hint: str, capsys: Capture) -> None:
    """Commands of a hint that only show something."""
    for shown in re.findall(r"(securefda(?: [a-z]+)* --help|securefda config explain \S+)", hint):
        code, out, _ = run(shown.removeprefix("securefda "), capsys)
        assert (code, bool(out)) == (0, True), shown


@pytest.mark.parametrize("name", EVERY)
def test_one_line_the_right_code_and_a_hint_that_works(name: str, place: Path, capsys: Capture) -> None:
    wrong = EVERY[name]
    if wrong.harm:
        wrong.harm()
    before = contents(place)

    code, out, err = run(wrong.command, capsys)

    line, hint = error_of(code, err)
    assert (code, bool(re.search(wrong.line, line))) == (wrong.code, True), (code, err)
    assert re.search(wrong.hint, hint) if wrong.hint else True, err
    assert bool(out) == wrong.prints, out
    after = contents(place)
    assert {path: after.get(path) for path in before} == before

    try_what_it_says(hint, capsys)
    if wrong.follow:
        wrong.follow()
    code, _, err = run(wrong.again or wrong.command, capsys)
    line, _ = error_of(code, err)
    assert bool(code) == bool(wrong.then), (code, err)
    assert re.search(wrong.then, line), (code, err)


@pytest.mark.parametrize("name", ["unknown-option", "rounds-zero", "missing", "no-kit", "no-ledger"])
def test_for_programs_the_same_is_one_envelope(name: str, place: Path, capsys: Capture) -> None:
    wrong = EVERY[name]
    code, out, err = run(f"{wrong.command} --format json", capsys)
    said = json.loads(out)
    assert (code, said["exit_code"], said["status"], err) == (wrong.code, wrong.code, "error", "")
    assert re.search(wrong.line, said["message"])
    assert re.search(wrong.hint, said["hint"])


def test_no_two_entries_have_one_name() -> None:
    assert len(EVERY) == sum(map(len, TABLES))
