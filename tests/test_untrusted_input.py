"""Every reader of TOML and JSON in the package is given what nobody writes by accident, and answers with one line.

The readers are found in the source: one that is missing below, or that parses by itself, fails a test.
"""

from __future__ import annotations

import ast
import io
import re
import shutil
import socket
import sqlite3
import subprocess
import sys
import threading
import time
import tomllib
import zipfile
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import closing, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import openpyxl
import pyarrow
import pyarrow.parquet
import pytest

import securefda
from securefda.aggregator.adaptation import kept_result
from securefda.aggregator.comparison import baseline_of
from securefda.aggregator.site import run_settings
from securefda.aggregator.store import AggregatorStore
from securefda.api.federation import Federation
from securefda.audit.charges import logged_charges
from securefda.audit.log_records import Record, RecordError
from securefda.audit.receipt import Receipt, ReceiptError
from securefda.audit.reconcile.evidence import FORMAT, Evidence, EvidenceError
from securefda.bench.accuracy import suite_folder
from securefda.bench.secagg import parties
from securefda.bench.secagg.job import Job
from securefda.bootstrap import rows_of_site
from securefda.cli import main
from securefda.dashboard import place
from securefda.dashboard.place import Place
from securefda.dashboard.site_reader import SiteReader, _Lines
from securefda.disk import FileContent, write_file
from securefda.errors import ConfigError, DataError, ExitCode, SecureFdaError
from securefda.formats import _of_json, _of_name
from securefda.local import launcher
from securefda.local.children import Child
from securefda.operations.run_folder import ROUND, RunFolder, read_run
from securefda.operations.state import find_states, read_state
from securefda.parse import MAX_NESTING, BeyondBounds, json_value, toml_table
from securefda.privacy.ledger import Ledger, rows_of
from securefda.privacy.ledger_storage import DataSet, LedgerError, _digest
from securefda.protocol.roster import Roster, SignedRoster
from securefda.samples import sample
from securefda.site.budget import load_site
from securefda.site.config import FederationConfig, aggregator_toml, kit_settings_toml, load_aggregator, load_federation
from securefda.site.config.effective import changes_since, effective_policy
from securefda.site.config.load import model_of, task_options
from securefda.site.endpoints import Address, Endpoints, SiteSpec
from securefda.site.enrolment import init_federation
from securefda.site.kit import check_not_older, check_proposal, load_kit
from securefda.site.left import LeavingCertificate
from securefda.site.policy import load_policy
from securefda.site.policy.schema import parse_policy
from securefda.site.policy.signed import with_policy_text
from securefda.site.request import SiteRequest
from securefda.tasks.features_file import read_features
from securefda.tasks.mapping import read_mapping, read_table
from securefda.threat_register import load_last_run, load_register

PACKAGE = Path(securefda.__file__).parent
PARSERS = {
    *("json_value", "toml_table", "parse_toml", "read_toml", "load_object", "read_object"),
    "model_validate_json",
}
WRAPPERS = {
    *("settings.read_toml", "settings.parse_toml", "parse.load_object"),
    "operations.run_folder.read_object",
    "source.follower.follow",  # the settings that the leading process of its own site has read
}
NOW = datetime(2026, 6, 1, 12, 0, tzinfo=UTC)
FEDERATION = b"""[federation]
name = "study"
sources = ["source-1", "source-2", "source-3"]
[task]
factory = "securefda.tasks.digits:Digits"
"""
RECORD = (
    b'{"attempt":0,"bytes":0,"decision":{},"digest":"","direction":"local","disclosure":{},"dp":{},"facts":{"x":@},'
    b'"party":"a","peer":"","round":0,"run":"r","seq":0,"session":"","time":"2026-01-01T00:00:00.000000Z",'
    b'"type":"alarm","v":1}'
)
ONE_FEATURE = b'"features":{"dtype":"F32","shape":[1,1],"data_offsets":[0,4]}'
KIT: list[Path] = []
"""A kit, which is made once; it is copied before a file of it is changed."""


@dataclass(frozen=True)
class Reader:
    """A reader of JSON: how it is given a text, and what it raises.

    ``around`` is a document with ``@`` where a value of any kind can stand. ``takes`` says that the reader itself is
    content with every value there: what reads on is the judge of it.
    """

    read: Callable[[Path, bytes], object]
    around: bytes = b'{"x":@}'
    raises: type[Exception] = ConfigError
    takes: bool = False

    def nested(self, shape: str, levels: int) -> bytes:
        return self.around.replace(b"@", JSON_SHAPES[shape](levels))

    def malformed(self, kind: str) -> bytes:
        return self.around.replace(b"@", JSON_MALFORMED[kind])


@dataclass(frozen=True)
class Quoted(Reader):
    """The same, where ``inner`` is JSON within a text of ``around``."""

    inner: bytes = b"@"

    def nested(self, shape: str, levels: int) -> bytes:
        return self._quoted(JSON_SHAPES[shape](levels))

    def malformed(self, kind: str) -> bytes:
        return self._quoted(JSON_MALFORMED[kind])

    def _quoted(self, value: bytes) -> bytes:
        inner = self.inner.replace(b"@", value).replace(b"\\", b"\\\\").replace(b'"', b'\\"')
        return self.around.replace(b"@", b'"' + inner + b'"')


@dataclass(frozen=True)
class TomlReader(Reader):
    """A reader of TOML; hostile lines about the key ``x`` stand before what is ``around``."""

    def nested(self, shape: str, levels: int) -> bytes:
        return TOML_SHAPES[shape](levels) + b"\n" + self.around

    def malformed(self, kind: str) -> bytes:
        return TOML_MALFORMED[kind] + b"\n" + self.around


JSON_SHAPES: dict[str, Callable[[int], bytes]] = {
    "arrays": lambda levels: b"[" * levels + b"]" * levels,
    "tables": lambda levels: b'{"a":' * levels + b"1" + b"}" * levels,
    "both": lambda levels: b'[{"a":' * (levels // 2) + b"1" + b"}]" * (levels // 2),
    "without end": lambda levels: b"[" * levels,
}
TOML_SHAPES: dict[str, Callable[[int], bytes]] = {
    "arrays": lambda levels: b"x=" + b"[" * levels + b"]" * levels,
    "tables": lambda levels: b"x=" + b"{a=" * levels + b"1" + b"}" * levels,
    "both": lambda levels: b"x.a.b=" + b"[{a.b=" * (levels // 2) + b"1" + b"}]" * (levels // 2),
    "without end": lambda levels: b"x=" + b"[" * levels,
    "dotted keys": lambda levels: b"x" + b" . a.'b'" * (levels // 2) + b" = 1",
    "headers": lambda levels: b"[[x" + b".'a'" * levels + b"]]",
    "dotted keys in tables": lambda levels: b"x=" + b"{a.b.c.d.e=" * (levels // 5) + b"1" + b"}" * (levels // 5),
}
JSON_MALFORMED = {
    "an integer of 5000 digits": b"9" * 5000,
    "an integer of 65 bits": b"%d" % 2**64,
    "half of a surrogate pair": b'"\\ud800"',
    "a NUL": b'"\0"',
    "no UTF-8": b'"\xff"',
    "a key twice": b'{"a":1,"a":1}',
    "a text without end": b'"' + b'\\"' * 100_000,
}
TOML_MALFORMED = {
    "an integer of 5000 digits": b"x=" + b"9" * 5000,
    "an integer of 65 bits": b"x=%d" % 2**64,
    "half of a surrogate pair": b'x="\\ud800"',
    "no UTF-8": b'x="\xff"',
    "a key twice": b"x=1\nx=1",
    "a text without end": b'x="' + b'\\"' * 100_000,
    "a long text without end": b'x="""' + b'\\"' * 100_000 + b"'''" * 100_000,
}


def in_file(name: str, read: Callable[[Path], object]) -> Callable[[Path, bytes], object]:
    """A reader of a file, which lies in a folder of its own under this name."""

    def given(folder: Path, data: bytes) -> object:
        (folder / name).write_bytes(data)
        return read(folder / name)

    return given


def of_one_feature(folder: Path, header: bytes) -> object:
    """A file with this header, and the four bytes of a feature."""
    (folder / "a.safetensors").write_bytes(len(header).to_bytes(8, "little") + header + bytes(4))
    return read_features(folder / "a.safetensors")


def of_a_run_to_go_on_with(folder: Path, data: bytes) -> object:
    """The target's settings in the folder of a run, which are compared with those that are asked for."""
    run, config = RunFolder(folder), load_federation(sample("digits"))
    (run.site(config.federation.target) / "aggregator.toml").write_bytes(data)
    return launcher._write_settings(config, run, Address("127.0.0.1", 8443), seed=0)


def in_kit(name: str) -> Callable[[Path, bytes], object]:
    def given(folder: Path, data: bytes) -> object:
        kit = shutil.copytree(KIT[0], folder / "kit", dirs_exist_ok=True)
        write_file(kit / name, data, 0o644)
        return load_kit(kit, NOW).signed_policy()

    return given


def as_text(data: bytes) -> str:
    """As Python hands over what came as an argument."""
    return data.decode("utf-8", "surrogateescape")


def with_set(folder: Path, data: bytes) -> object:
    (folder / "site.toml").write_bytes(FEDERATION)
    key, _, value = as_text(data).partition("=")
    return load_federation(folder / "site.toml", [f"task.options.{key.strip()}={value}"])


def federation_in(folder: Path) -> FederationConfig:
    (folder / "site.toml").write_bytes(FEDERATION)
    return load_federation(folder / "site.toml")


def in_a_ledger(folder: Path, data: bytes) -> object:
    """In place of a row, by somebody who also knows how to digest it."""
    file = folder / "ledger.sqlite"
    if not file.exists():
        Ledger.create(file, DataSet("hospital-a", "hearts", "ab" * 32, 300), now=1_800_000_000)
    digest = _digest(bytes(32), 1, data.decode("utf-8", "replace"))
    with closing(sqlite3.connect(file)) as base:
        base.execute("UPDATE rows SET body = CAST(? AS TEXT), digest = ? WHERE number = 1", (data, digest))
        base.commit()
    return rows_of(file)


def in_a_store(folder: Path, data: bytes) -> object:
    file = folder / "state.sqlite"
    with closing(AggregatorStore(file)) as store:
        store.begin_run(b"r" * 16, b"", np.zeros(1, np.float32))
    with closing(sqlite3.connect(file)) as base:
        base.execute("INSERT OR REPLACE INTO rounds VALUES (1, CAST(? AS TEXT))", (data,))
        base.commit()
    with closing(AggregatorStore(file)) as store:
        return store.records()


def as_the_result_of_a_process(folder: Path, data: bytes) -> object:
    (folder / "result.json").write_bytes(data)
    ended = subprocess.Popen([sys.executable, "-c", "raise SystemExit(1)"])
    ended.wait()
    failure = Child("hospital", ended, folder, socket.socket()).failure()
    assert failure is not None
    raise failure


def said_by_a_process(folder: Path, data: bytes) -> object:
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    ours, theirs = socket.socketpair()
    site = Child("hospital", ended, folder, ours)

    def say() -> None:
        with theirs, suppress(OSError):
            theirs.sendall(data)

    speaker = threading.Thread(target=say)
    speaker.start()
    said = []
    try:
        while not site.has_ended:
            said += site.events()
    finally:
        ours.close()
        speaker.join()
    return said


def first_of_metrics(file: Path) -> str:
    """The role that a dashboard reads from the first line of a run's metrics."""
    role = place._role_in(file)
    if not role:
        raise ConfigError(file.name, "says no role")
    return role


def looked_at(read: Callable[[SiteReader, Place], object]) -> Callable[[Path], object]:
    """A part of what a dashboard reads, for which it shows a problem in place of an error."""

    def given(file: Path) -> object:
        reader = SiteReader(file.parent)
        seen = read(reader, Place(file.parent, file.parent, "target", settings=file))
        if reader._problems:
            raise ConfigError(file.name, reader._problems[0])
        return seen

    return given


READERS = {
    "site.config.load.load_settings": TomlReader(in_file("f.toml", load_federation), FEDERATION),
    "site.config.load.model_of": TomlReader(in_file("f.toml", model_of), b"[tool]\ny = 1"),
    "site.config.load.task_options": TomlReader(in_file("f.toml", task_options), b"[tool]\ny = 1"),
    "site.config.effective.effective_policy": TomlReader(in_file("p.toml", effective_policy), b"min-others = 2"),
    "site.config.effective.changes_since": Reader(
        lambda folder, data: changes_since(data, federation_in(folder)), b'{"version":1,"settings":@}', ValueError
    ),
    "site.config.load._parse_value": TomlReader(with_set, b"", takes=True),
    "site.policy.schema.load_policy": TomlReader(in_file("site.policy.toml", load_policy), b"min-others = 2"),
    "site.policy.schema.parse_policy": TomlReader(
        lambda folder, data: parse_policy(data, folder / "site.policy.toml"), b"min-others = 2"
    ),
    "site.budget.load_site": TomlReader(
        in_file("source.toml", lambda file: load_site(file, [], {}, NOW, rows_of_site, logged=logged_charges)),
        b"[source]\nkit = 'x'",
    ),
    "tasks.mapping.read_mapping": TomlReader(in_file("a.mapping.toml", read_mapping), b""),
    "tasks.features_file._of_safetensors": Reader(of_one_feature, b'{"__metadata__":@,%s}' % ONE_FEATURE),
    "tasks.features_file._names": Quoted(
        of_one_feature, b'{"__metadata__":{"classes":@},%s}' % ONE_FEATURE, inner=b"[@]"
    ),
    "threat_register.load_register": TomlReader(in_file("threats.toml", lambda file: load_register(file.parent)), b""),
    "threat_register.load_last_run": Reader(
        in_file(".last-run.json", lambda file: load_last_run(file.parent)), b'{"tests":{"x":@}}'
    ),
    "site.endpoints.Endpoints.from_toml": TomlReader(
        lambda _, data: Endpoints.from_toml(data), b"[aggregator]\naddress = 'a:1'\nserver-name = 'a'"
    ),
    "site.kit._read": Reader(
        in_file("rosters.json", lambda file: check_not_older(file.parent, "ab", load_kit(KIT[0], NOW).roster)),
        b'{"rosters":{"ab":@},"version":1}',
    ),
    "site.kit.Manifest.from_signed_bytes": Reader(in_kit("startup/kit.json"), b'{"ca_signature":@,"manifest":""}'),
    "site.kit.Manifest._parse": Quoted(
        in_kit("startup/kit.json"), b'{"ca_signature":"","manifest":@}', inner=b'{"version":@}'
    ),
    "site.kit.check_proposal": Quoted(
        lambda _, data: check_proposal(
            load_kit(KIT[0], NOW), {name: FileContent(data, 0o644) for name in ("proposal.json", "policy.toml")}
        ),
        b'{"ca_signature":"","proposal":@}',
        inner=b'{"federation_id":"","site_id":"","roster_digest":"","files":@}',
    ),
    "site.request.SiteRequest.from_bytes": Quoted(
        lambda _, data: SiteRequest.from_bytes("request.json", data),
        b'{"request":@,"signing_proof":"","tls_proof":"","renewal_proof":""}',
        inner=b'{"version":@}',
    ),
    "site.left.LeavingCertificate.from_bytes": Quoted(
        lambda _, data: LeavingCertificate.from_bytes("leaving.json", data),
        b'{"leaving":@,"signature":""}',
        inner=b'{"version":@}',
    ),
    "formats._of_json": Reader(lambda _, data: _of_json(data), b'{"version":@}', ValueError),
    "formats._of_name": Reader(lambda _, data: _of_name(data, "evidence"), b'{"format":@}', ValueError),
    "site.policy.signed.with_policy_text": Reader(
        in_file("policy.sig", lambda file: with_policy_text(file, file.read_bytes(), b"min-others = 2\n")),
        b'{"policy":"","site_signature":@}',
    ),
    "site.policy.signed._parse": Reader(
        in_kit("local/policy.sig"), b'{"policy":"","policy_text":"","site_signature":@}'
    ),
    "site.policy.signed._Statement.parse": Quoted(
        in_kit("local/policy.sig"), b'{"policy":@,"policy_text":"","site_signature":""}', inner=b'{"version":@}'
    ),
    "protocol.roster.SignedRoster.from_bytes": Reader(
        lambda _, data: SignedRoster.from_bytes(data), b'{"roster":"","ca_signature":"","member_signatures":@}'
    ),
    "protocol.roster.Roster.from_canonical_bytes": Reader(
        lambda _, data: Roster.from_canonical_bytes(data), b'{"version":1,"federation_id":"a","epoch":1,"sites":@}'
    ),
    "audit.log_records._not_in_form": Reader(lambda _, data: Record.parse(data), b'{"v":@}', RecordError),
    "audit.log_records._object_from": Reader(lambda _, data: Record.parse(data), RECORD, RecordError),
    "audit.reconcile.evidence.Evidence.parse": Reader(
        lambda _, data: Evidence.parse(data), b'{"format":"%s","claims":@}' % FORMAT.encode(), EvidenceError
    ),
    "audit.receipt.Receipt.parse": Reader(
        lambda _, data: Receipt.parse(data), b'{"format":"securefda-receipt/1","signatures":@}', ReceiptError
    ),
    "privacy.ledger_storage._parse_row": Reader(in_a_ledger, b'{"kind":"opened","time":1,"ledger":@}', LedgerError),
    "operations.run_folder._read_lines": Reader(
        in_file("metrics.jsonl", lambda file: read_run(file.parent)), b'{"round":@}\n'
    ),
    "operations.run_folder.read_summary": Reader(
        in_file("summary.json", lambda file: read_run(file.parent)), b'{"rounds":@}'
    ),
    "aggregator.store.AggregatorStore._json": Reader(in_a_store, raises=SecureFdaError, takes=True),
    "aggregator.adaptation.kept_result": Reader(lambda _, data: kept_result(data), b'{"asked":"","result":@}'),
    "aggregator.comparison.baseline_of": Reader(
        lambda _, data: baseline_of(data), b'{"accuracy":1.0,"final":1.0,"metrics":{},"rounds":@}'
    ),
    "local.children.Child.result": Reader(as_the_result_of_a_process, b"[@]", SecureFdaError),
    "local.children.Child.events": Reader(said_by_a_process, b'{"note":@}\n', SecureFdaError, takes=True),
    "local.launcher._write_settings": TomlReader(of_a_run_to_go_on_with, b""),
    "dashboard.place._role_in": Reader(in_file("metrics.jsonl", first_of_metrics), b'{"x":@}\n', takes=True),
    "dashboard.place._paths_in": TomlReader(in_file("source.toml", place._paths_in), b"", takes=True),
    "dashboard.site_reader._Lines.catch_up": Reader(
        in_file("metrics.jsonl", lambda file: _Lines(file, ROUND).catch_up()), b'{"round":@}\n'
    ),
    "dashboard.site_reader.SiteReader._setting": TomlReader(
        in_file("aggregator.toml", looked_at(lambda reader, where: reader._setting(where, "strategy", "rounds"))),
        b"",
        takes=True,
    ),
    "api.federation.Federation.from_file": TomlReader(in_file("federation.toml", Federation.from_file), b""),
    "operations.state.read_state": Reader(
        in_file("status.json", lambda file: read_state(file.parent)), b'{"schema_version":1,"x":@}'
    ),
    "operations.state._folders": TomlReader(in_file("settings.toml", lambda file: find_states(file, {})), b""),
    "bench.secagg.parties._figures": Reader(
        lambda _, data: parties._figures(as_text(data)), raises=SecureFdaError, takes=True
    ),
    "bench.secagg.job.Job.from_json": Reader(lambda _, data: Job.from_json(as_text(data))),
    "bench.accuracy.suite_folder._read_settings": Reader(in_file("settings.json", suite_folder._read_settings)),
    "bench.accuracy.suite_folder._runs": Reader(
        in_file("runs.jsonl", lambda file: list(suite_folder._runs(file))),
        b'{"data":@,"column":"","target":"","rule":"","seed":0}\n',
    ),
}
"""Every function of the package that parses, by its place in it, but for ``WRAPPERS``."""


@pytest.fixture(scope="module", autouse=True)
def _kit(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    root = tmp_path_factory.mktemp("federation") / "kits"
    hospitals = [SiteSpec(f"hospital-{name}", "source", f"Hospital {name}") for name in "abc"]
    sites = [SiteSpec("clinic", "target", "Clinic", ("127.0.0.1",)), *hospitals]
    here = Address("127.0.0.1", 1)
    init_federation(root, "study", sites, aggregator=here, policy_text="min-others = 2\n", settings_text="", now=NOW)
    KIT.append(root / "hospital-a")
    yield
    KIT.clear()


def refused(name: str, folder: Path, data: bytes) -> str:
    """Have it read, which must not take long; returns the one line."""
    began = time.monotonic()
    with pytest.raises(READERS[name].raises) as caught:
        READERS[name].read(folder, data)
    assert time.monotonic() - began < 5
    return one_line(caught.value)


def one_line(error: Exception) -> str:
    line = str(error)
    assert line.isprintable(), line
    assert len(line) < 500, line
    if isinstance(error, SecureFdaError):
        assert error.hint.isprintable() or not error.hint
        assert error.exit_code in (ExitCode.FAILED, ExitCode.CONFIG, ExitCode.BUDGET)
    return line


def shapes(name: str) -> Iterable[str]:
    return TOML_SHAPES if isinstance(READERS[name], TomlReader) else JSON_SHAPES


def kinds(name: str) -> Iterable[str]:
    return TOML_MALFORMED if isinstance(READERS[name], TomlReader) else JSON_MALFORMED


@pytest.mark.parametrize("levels", [1000, 100_000])
@pytest.mark.parametrize(("name", "shape"), [(name, shape) for name in READERS for shape in shapes(name)])
def test_nesting_without_bounds_is_refused_in_one_line(name: str, shape: str, levels: int, tmp_path: Path) -> None:
    refused(name, tmp_path, READERS[name].nested(shape, levels))


@pytest.mark.parametrize(("name", "shape"), [(name, shape) for name in READERS for shape in shapes(name)])
def test_ten_levels_are_taken_or_refused_in_one_line(name: str, shape: str, tmp_path: Path) -> None:
    reader = READERS[name]
    if reader.takes and shape not in ("without end", "headers"):
        reader.read(tmp_path, reader.nested(shape, 10))
    elif not reader.takes or not isinstance(reader, TomlReader):
        refused(name, tmp_path, reader.nested(shape, 10))


@pytest.mark.parametrize(("name", "kind"), [(name, kind) for name in READERS for kind in kinds(name)])
def test_malformed_values_are_refused_in_one_line(name: str, kind: str, tmp_path: Path) -> None:
    data = READERS[name].malformed(kind)
    if name == "site.config.load._parse_value" and kind in AS_TEXT:
        READERS[name].read(tmp_path, data)
    else:
        refused(name, tmp_path, data)


AS_TEXT = ("a key twice", "a text without end", "a long text without end", "half of a surrogate pair")
"""An override that is no TOML is a plain text."""


def test_deepest_options_of_a_task_go_all_the_way(tmp_path: Path) -> None:
    """What the reader lets through, no part of the package that walks over it stumbles on: from a file to a process."""
    file = tmp_path / "site.toml"
    levels = MAX_NESTING - 2  # [task] and options are two
    file.write_bytes(FEDERATION + b"options.x = " + b"[" * (levels - 1) + b"]" * (levels - 1))
    config = load_federation(file)

    text = aggregator_toml(config, tmp_path / "kit", tmp_path / "out", 0)
    assert kit_settings_toml(config, "source-1", "127.0.0.1:1")
    (tmp_path / "aggregator.toml").write_text(text)
    read = load_aggregator(tmp_path / "aggregator.toml")
    assert read.task.options == config.task.options
    run_settings(read, load_kit(KIT[0], NOW).roster)

    file.write_bytes(FEDERATION + b"options.x = " + b"[" * levels + b"]" * levels)
    refused("site.config.load.load_settings", tmp_path, file.read_bytes())


@pytest.mark.parametrize("levels", [MAX_NESTING, MAX_NESTING + 1])
@pytest.mark.parametrize("shape", ["arrays", "tables"])
def test_the_bound_is_the_same_for_json_and_toml(shape: str, levels: int) -> None:
    parses = [
        lambda: json_value(JSON_SHAPES[shape](levels)),
        lambda: toml_table(TOML_SHAPES[shape](levels - 1)),  # the document is a table itself
        lambda: toml_table(b"x" + b".a" * (levels - 1) + b" = 1"),
    ]
    for parse in parses:
        if levels <= MAX_NESTING:
            parse()
        else:
            with pytest.raises(BeyondBounds, match="nested more than 32 levels deep"):
                parse()


@pytest.mark.parametrize(
    "text",
    [
        'a = """x""""\nb = "[[#"\nc = \'[[\' # [[[[\n',
        "d = '''it's [[\"\"\"'''\ne = [1.5, 2.5]\n",
        'f = """[[\\"""[[[["""\n' + "[a.b]\nc.d = 1\n" * 1,
        "g = [" + "{x.y.z = 1.5}, " * 100 + "]\n",
        "h = '" + "." * 100 + "[" * 100 + "'\n" + '"' + "." * 100 + '" = 1\n',
        "i = '''" + "[" * 100 + "'''''\n",
    ],
)
def test_brackets_and_dots_in_texts_and_comments_do_not_count(text: str) -> None:
    assert toml_table(text) == tomllib.loads(text)


def zipped() -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as packed:
        packed.writestr("a.txt", "a")
    return file.getvalue()


def workbook_with(sheet: bytes) -> bytes:
    """An Excel file whose sheet is this XML."""
    book, changed = io.BytesIO(), io.BytesIO()
    openpyxl.Workbook().save(book)
    with zipfile.ZipFile(book) as packed, zipfile.ZipFile(changed, "w", zipfile.ZIP_DEFLATED) as repacked:
        for name in packed.namelist():
            repacked.writestr(name, sheet if name == "xl/worksheets/sheet1.xml" else packed.read(name))
    return changed.getvalue()


def parquet_file() -> bytes:
    file = io.BytesIO()
    pyarrow.parquet.write_table(pyarrow.table({"x": list(range(1000))}), file)
    return file.getvalue()


LAUGHS = (
    b"<?xml version='1.0'?><!DOCTYPE a [<!ENTITY a '"
    + b"ha" * 1000
    + b"'>"
    + b"".join(b"<!ENTITY %c '%s'>" % (97 + n, b"&%c;" % (96 + n) * 10) for n in range(1, 15))
    + b"]><worksheet xmlns='http://schemas.openxmlformats.org/spreadsheetml/2006/main'>&o;</worksheet>"
)
NESTED = b"<a>" * 100_000
TABLES = {
    "xlsx": {
        "nothing": b"",
        "no archive": b"PK\3\4" + bytes(100),
        "another archive": zipped(),
        "cut": workbook_with(b"")[:-100],
        "no sheet": workbook_with(b""),
        "no XML": workbook_with(b"\xff<"),
        "entities of entities": workbook_with(LAUGHS),
        "nesting": workbook_with(NESTED),
    },
    "parquet": {
        "nothing": b"",
        "no file of its kind": b"PAR1" + bytes(100),
        "cut": parquet_file()[:-100],
        "another end": parquet_file()[:-200] + b"\xff" * 192 + b"PAR1",
        "other pages": parquet_file()[:4] + b"\xff" * 500 + parquet_file()[504:],
    },
}
"""Files of tables that are none, by their suffix."""


@pytest.mark.parametrize(("suffix", "kind"), [(suffix, kind) for suffix in TABLES for kind in TABLES[suffix]])
def test_a_table_that_is_none_is_refused_in_one_line(suffix: str, kind: str, tmp_path: Path) -> None:
    (tmp_path / f"a.{suffix}").write_bytes(TABLES[suffix][kind])
    began = time.monotonic()
    with pytest.raises(DataError) as caught:
        read_table(tmp_path / f"a.{suffix}")
    assert time.monotonic() - began < 5
    one_line(caught.value)


def test_every_reader_of_the_package_is_in_the_table() -> None:
    found = {place for place, name in called(PARSERS) if name.rpartition(".")[2] in PARSERS}
    assert found - WRAPPERS == set(READERS)


def test_nothing_parses_but_by_the_bounded_parser() -> None:
    """``model_validate_json`` counts levels itself; a fork server reads what its own process writes to it."""
    parsing = ("json.loads", "json.load", "json.JSONDecoder", "tomllib.loads", "tomllib.load", "ast.literal_eval")
    assert {place for place, name in called(parsing) if name in parsing} == {
        "parse.toml_table",
        "parse",
        "local.fork_server_program.Server._next",
    }
    modules = ("tomllib", "tomli", "tomlkit", "yaml", "pickle", "marshal", "plistlib", "from json")
    assert {place for place, name in imported(modules) if name in modules} == {"parse"}


def called(names: Collection[str]) -> Iterator[tuple[str, str]]:
    """Where in the package something is called, and its name: all calls in each file that could have one of these."""
    for file, tree in trees_with(names):
        yield from calls_below(tree, file)


def calls_below(node: ast.AST, place: str) -> Iterator[tuple[str, str]]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Call):
            yield place, dotted(child.func)
        inner = isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
        yield from calls_below(child, f"{place}.{child.name}" if inner else place)  # type: ignore[attr-defined]


def dotted(node: ast.expr) -> str:
    """A name such as ``json.loads``; of what is no name, its last part."""
    match node:
        case ast.Name(name):
            return name
        case ast.Attribute(value, name):
            return f"{dotted(value)}.{name}"
    return ""


def imported(names: Collection[str]) -> Iterator[tuple[str, str]]:
    for file, tree in trees_with(names):
        for node in ast.walk(tree):
            if isinstance(node, ast.Import):
                yield from ((file, alias.name.partition(".")[0]) for alias in node.names)
            elif isinstance(node, ast.ImportFrom) and node.module:
                yield file, node.module.partition(".")[0]
                yield file, f"from {node.module}"


def trees_with(names: Collection[str]) -> Iterator[tuple[str, ast.Module]]:
    """The files in whose texts the words of one of these names follow each other; parsing all files takes seconds."""
    wanted = re.compile("|".join(rf"\b{name}\b" for name in names).replace(".", r"\W+").replace(" ", r"\W+"))
    for file in sources():
        text = file.read_text()
        if wanted.search(text):
            yield place_of(file), ast.parse(text)


def sources() -> list[Path]:
    return [file for file in sorted(PACKAGE.rglob("*.py")) if "v1" not in file.parts]


def place_of(file: Path) -> str:
    return ".".join(file.relative_to(PACKAGE).with_suffix("").parts)


@pytest.mark.parametrize("command", ["simulate", "run", "policy explain", "threats --register"])
def test_a_command_ends_with_one_line_and_exit_code_4(
    command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / ("threats.toml" if command.startswith("threats") else "given.toml")
    file.write_bytes(TOML_SHAPES["both"](100_000))
    before = sorted(tmp_path.iterdir())

    assert main([*command.split(), str(tmp_path if command.startswith("threats") else file)]) == ExitCode.CONFIG

    said = capsys.readouterr()
    assert said.out == ""
    first, *hint = said.err.splitlines()
    assert first.startswith("error: ")
    assert "nested more than 32 levels deep" in first
    assert len(hint) <= 1
    assert sorted(tmp_path.iterdir()) == before
