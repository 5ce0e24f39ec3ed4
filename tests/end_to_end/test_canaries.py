"""No secret and no value of a row is in any file that a run leaves: canaries are planted, and every file is searched.

They are planted in the rows and labels of every site, in an option of the task, in a comment of every policy and of
the federation's file; the private keys of the kits, the CA's too, are canaries as they are. Each is looked for in the
forms in which somebody might have written it. Left out are only the files in which it was planted. What a model has
learnt of the rows is not looked for: models are what a run is for.
"""

from __future__ import annotations

import base64
import sqlite3
import struct
from collections.abc import Iterable, Iterator
from contextlib import closing
from pathlib import Path

import pytest
from canary_tasks import LABELS, OPTION, ROW_VALUES
from e2e_processes import Kits, Process, kits

from securefda.audit.kept import read_kept
from securefda.audit.reading import find_logs, open_log
from securefda.cli import main
from securefda.site.kit import SECRET_FILES
from securefda.site.training_secret import TRAINING_KEY_FILE, make_training_secret
from securefda.transport.wire import decode_signed

POLICY_COMMENT = "canary-0c59: the ward is afraid of the insurer"
KEY_FILES = (*SECRET_FILES, TRAINING_KEY_FILE)
PLANTED_IN = {
    "federation.toml",
    "settings.toml",
    "aggregator.toml",
    "source.toml",
    "policy.toml",
    "policy.sig",
    *KEY_FILES,
}
"""Names of files that hold a canary because it was put there; and what the CA's folder holds."""
SETTINGS = (
    "strategy.rounds=1",
    "strategy.warm-up-rounds=0",
    "training.source.batch-size=8",
    "training.target.batch-size=8",
    f"task.options.password={OPTION}",
    "logging.file=site.log",
    "logging.json-file=site.jsonl",
    "logging.level=debug",
)
NOISE = "dp.noise-multiplier=8.0"


def forms_of_bytes(secret: bytes) -> set[bytes]:
    """Raw, hex, Base64 at each of the three places where it can begin, and as a number."""
    forms = {secret, secret.hex().encode(), secret.hex().upper().encode()}
    for shift in range(3):
        text = base64.b64encode(bytes(shift) + secret)
        inner = text[4 if shift else 0 : -4]  # the ends depend on what stands beside it
        forms |= {inner, inner.replace(b"+", b"-").replace(b"/", b"_")}
    return forms | {str(int.from_bytes(secret, order)).encode() for order in ("big", "little")}


def forms_of_number(value: float) -> set[bytes]:
    """Seven digits of it, cut or rounded, and its IEEE bytes; those of a float32 in hex only: chance has four bytes."""
    decimals = 7 if abs(value) < 1 else 6
    texts = set()
    for written in (value, float_32(value)):
        mantissa = f"{abs(written):.6e}"[:8]
        texts |= {f"{abs(written):.12f}"[: decimals + 2], f"{abs(written):.{decimals}f}", mantissa}
        texts |= {struct.pack(order + "f", written).hex() for order in "<>"}
    double = {struct.pack(order + "d", written) for order in "<>" for written in (value, float_32(value))}
    return {text.encode() for text in texts | {packed.hex() for packed in double}} | double


def float_32(value: float) -> float:
    """The value that a row of the task really has."""
    rounded: float = struct.unpack("<f", struct.pack("<f", value))[0]
    return rounded


def canaries_of_rows() -> dict[str, set[bytes]]:
    beside = {
        f"row, {order} bytes": struct.pack(mark + "2f", *ROW_VALUES) for mark, order in (("<", "little"), (">", "big"))
    }
    numbers = {str(value): forms_of_number(value) for value in (*ROW_VALUES, *LABELS)}
    return numbers | {name: forms_of_bytes(data) for name, data in beside.items()}


def canaries_of_keys(root: Path) -> dict[str, set[bytes]]:
    """Of every private key below a folder: its file, its body, and the key itself, which is at the end of its DER."""
    found = {}
    for file in key_files(root):
        data = file.read_bytes()
        body = b"".join(line for line in data.splitlines() if b"-----" not in line) if b"-----" in data else b""
        secret = base64.b64decode(body) if body else data
        found[str(file)] = {data.strip(), *([body, body[-32:]] if body else [])} | forms_of_bytes(key_in(secret))
    return found


def key_in(der: bytes) -> bytes:
    """The 32 secret bytes: a raw key, or behind the tag of an octet string of that length."""
    return der if len(der) == 32 else der[der.index(b"\x04\x20") + 2 :][:32]


def key_files(root: Path) -> list[Path]:
    files = [file for file in root.rglob("*") if file.is_file()]
    return [file for file in files if file.name in KEY_FILES or b"PRIVATE KEY" in file.read_bytes()]


def canaries_of(root: Path) -> dict[str, set[bytes]]:
    words = {"option": forms_of_bytes(OPTION.encode()), "policy": forms_of_bytes(POLICY_COMMENT.encode())}
    return canaries_of_rows() | canaries_of_keys(root) | words


def contents(file: Path) -> Iterator[bytes]:
    """A file as it is, and as those who know its form read it: values of a data base."""
    data = file.read_bytes()
    yield data
    if data.startswith(b"SQLite format 3"):
        with closing(sqlite3.connect(f"file:{file}?mode=ro&immutable=1", uri=True)) as base:
            for (table,) in base.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall():
                for row in base.execute(f'SELECT * FROM "{table}"'):
                    yield b"\0".join(value if isinstance(value, bytes) else str(value).encode() for value in row)


def kept_messages(root: Path) -> Iterator[tuple[Path, bytes]]:
    """What the messages beside the logs say, in words."""
    for log in find_logs(root):
        for message in read_kept(log):
            yield log, repr(decode_signed(message)).encode()


def leaks(root: Path, canaries: dict[str, set[bytes]]) -> list[tuple[str, str]]:
    """Where a canary is that was not put there: the file, and which."""
    left = [file for file in root.rglob("*") if file.is_file() and not is_planted(file, canaries)]
    texts = [(file, text) for file in left for text in contents(file)]
    return [
        (str(file), name)
        for file, text in [*texts, *kept_messages(root)]
        for name, forms in canaries.items()
        if any(form in text for form in forms)
    ]


def is_planted(file: Path, canaries: Iterable[str]) -> bool:
    return file.name in PLANTED_IN or str(file) in canaries


def assert_logs_verify(root: Path) -> None:
    logs = find_logs(root)
    assert len(logs) == 4
    assert all(open_log(log).size() > 20 for log in logs)
    charged = [log.parent.parent.parent.name for log in logs if any(is_charge(log))]
    assert len(charged) == 1, charged
    assert main(["audit", "verify", *map(str, logs)]) == 0
    assert main(["audit", "reconcile", str(root)]) == 0


def is_charge(log: Path) -> Iterator[bool]:
    """Record by record, whether it is a charge for training with noise."""
    return (record.entry.type == "ledger-updated" for record in open_log(log).records())


def test_no_canary_is_in_any_file_that_a_run_leaves(tmp_path: Path) -> None:
    """``securefda run``: three sources at sum, the target trains with noise, everybody keeps logs."""
    (tmp_path / "federation.toml").write_text(
        '[federation]\nname = "study"\nsources = ["source-1", "source-2", "source-3"]\n'
        '[task]\nfactory = "canary_tasks:Marked"\n'
        f"# {POLICY_COMMENT}\n"
    )
    sets = [part for text in (*SETTINGS, f"training.target.{NOISE}") for part in ("--set", text)]
    run = Process(["run", str(tmp_path / "federation.toml"), "--out", str(tmp_path / "out"), *sets])
    assert run.end() == 0, run.text
    assert_no_canary_is_left(tmp_path)
    assert_logs_verify(tmp_path)


def test_no_canary_is_in_any_file_that_sites_with_kits_leave(tmp_path: Path) -> None:
    """Processes from kits: three sources at individual, the first trains with noise, everybody keeps logs."""
    settings = ("privacy.visibility=individual", *SETTINGS)
    with kits(tmp_path, 3, settings=settings, task="canary_tasks:Marked") as federation:
        for site in federation.names:
            policy = federation.kit(site) / "local" / "policy.toml"
            policy.write_text(f"# {POLICY_COMMENT}\n{policy.read_text()}")
            assert main(["policy", "sign", str(federation.kit(site))]) == 0
        own, noise = federation.kit("source-1") / "local" / "settings.toml", f"training.{NOISE}"
        assert main(["budget", "init", "--config", str(own), "--set", noise]) == 0
        processes = [federation.start(site, *([noise] if site == "source-1" else [])) for site in federation.names]
        processes.append(federation.start("target"))
        for process in processes:
            assert process.end() == 0, process.text
    assert_no_canary_is_left(tmp_path)
    assert_logs_verify(tmp_path)

    # Secrets for training are among the canaries: one at each site that trains without noise, made by its process.
    made = {Path(name).parents[1].name for name in canaries_of_keys(tmp_path) if name.endswith(TRAINING_KEY_FILE)}
    assert made == {"target", "source-2", "source-3"}

    # Control: a run that notes a row down is found.
    log = federation.kit("source-3") / "local" / "run" / "site.log"
    log.write_bytes(log.read_bytes() + f"patient {ROW_VALUES[0]:.7g}\n".encode())
    assert leaks(tmp_path, canaries_of(tmp_path)) == [(str(log), str(ROW_VALUES[0]))]


def assert_no_canary_is_left(root: Path) -> None:
    canaries = canaries_of(root)
    assert len(canaries) >= len(ROW_VALUES) + len(LABELS) + 2 + 2 * 4 + 2
    names = {file.name for file in root.rglob("*")}
    assert {"state.sqlite", "site.log", "site.jsonl", "checkpoint", "tail", "messages.bin", "report.html"} <= names

    assert leaks(root, canaries) == []


FORMS = {
    "a value as Python prints it": lambda: f"loss of {ROW_VALUES[0]!r}",
    "a label, rounded": lambda: f'{{"worst": {LABELS[1]:.6f}}}',
    "a row, as its bytes": lambda: struct.pack("<4f", *ROW_VALUES, 1.0, 2.0),
    "a row in Base64": lambda: base64.b64encode(b"x" + struct.pack("<4f", *ROW_VALUES, 1.0, 2.0)),
    "a value as a double": lambda: struct.pack("<d", float_32(ROW_VALUES[1])),
    "the option": lambda: f"password={OPTION}",
    "the comment in hex": lambda: POLICY_COMMENT.encode().hex(),
}


@pytest.mark.parametrize("form", FORMS)
def test_control_a_canary_that_leaks_is_found(form: str, tmp_path: Path) -> None:
    (tmp_path / "note.bin").write_bytes(b"round 1 " + as_bytes(FORMS[form]()) + b" and on\n")

    assert [file for file, _ in leaks(tmp_path, canaries_of(tmp_path))] != []


def as_bytes(text: str | bytes) -> bytes:
    return text.encode() if isinstance(text, str) else text


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> dict[str, set[bytes]]:
    """Canaries of a federation's kits, in which one site has made its secret for training."""
    made = Kits(tmp_path_factory.mktemp("keys"))
    make_training_secret(made.kit("source-2") / "local")
    return canaries_of_keys(made.root)


@pytest.mark.parametrize("key", [f"startup/{SECRET_FILES[0]}", f"local/{TRAINING_KEY_FILE}"])
@pytest.mark.parametrize("form", ["raw", "hex", "base64", "decimal"])
def test_control_a_key_that_leaks_is_found_in_a_file_and_in_a_data_base(
    form: str, key: str, keys: dict[str, set[bytes]], tmp_path: Path
) -> None:
    file = next(name for name in keys if name.endswith(f"source-2/{key}"))
    data = Path(file).read_bytes()
    secret = key_in(base64.b64decode(b"".join(data.splitlines()[1:-1])) if b"-----" in data else data)
    said = {
        "raw": secret,
        "hex": secret.hex(),
        "base64": base64.b64encode(b"ab" + secret + b"c"),
        "decimal": str(int.from_bytes(secret, "big")),
    }[form]
    (tmp_path / "site.log").write_bytes(b"x " + as_bytes(said) + b"\n")
    with closing(sqlite3.connect(tmp_path / "state.sqlite")) as base:
        base.execute("CREATE TABLE notes (text)")
        base.execute("INSERT INTO notes VALUES (?)", (as_bytes(said) + bytes(9000),))
        base.commit()

    assert {Path(name).name for name, _ in leaks(tmp_path, keys)} == {"site.log", "state.sqlite"}
