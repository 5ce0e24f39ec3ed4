"""Settings of logs and metrics: what is refused, with the nearest key, and what each site of a run gets."""

from __future__ import annotations

import tomllib
from collections.abc import Callable
from pathlib import Path

import pytest

from securefda.errors import ConfigError, ExitCode
from securefda.site.config import (
    LoggingSection,
    MetricsSection,
    aggregator_toml,
    kit_settings_toml,
    load_aggregator,
    load_federation,
    load_source,
    source_toml,
)

SITES = ["source-1", "source-2", "source-3"]
FEDERATION = f"""
[federation]
name = "study"
sources = {SITES}
[task]
factory = "securefda.tasks.digits:Digits"
"""
SOURCE = '[source]\nkit = "kit"\n[task]\nfactory = "a:B"\n'


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "federation.toml"


BAD = [
    ("[logging]\nfiel = 'a.log'", "logging.fiel", "unknown key", "did you mean logging.file?"),
    ("[logging]\njson_file = 'a.jsonl'", "logging.json_file", "unknown key", "logging.json-file"),
    ("[logging]\nfile = 'metrics.jsonl'", "logging.file", "must end in .log", ""),
    ("[logging]\nfile = 'state.sqlite'", "logging.file", "must end in .log", ""),
    ('[logging]\nfile = "a\\u0000.log"', "logging.file", "no control characters", ""),
    ("[logging]\nfile = 7", "logging.file", "text in quotes", ""),
    ("[logging]\njson-file = 'a.json'", "logging.json-file", "must end in .jsonl", ""),
    ("[logging]\njson-file = 'metrics.jsonl'", "logging.json-file", "a file of the run itself", ""),
    ("[logging]\njson-file = 'x/../metrics.jsonl'", "logging.json-file", "a file of the run itself", ""),
    ("[logging]\nlevel = 'warn'", "logging.level", "'warning'", ""),
    ("[logging]\nmax-bytes = 100", "logging.max-bytes", "65536", ""),
    ("[logging]\nbackups = 0", "logging.backups", "at least 1", ""),
    ("[metrics]\nprot = 9464", "metrics.prot", "unknown key", "did you mean metrics.port?"),
    ("[metrics]\nhots = '0.0.0.0'", "metrics.hots", "unknown key", "did you mean metrics.host?"),
    ("[metrics]\nhost = 'localhost'", "metrics.host", "must be an IP address", ""),
    ("[metrics]\nhost = ''", "metrics.host", "must be an IP address", ""),
    ("[metrics]\nhost = '0.0.0.0:9464'", "metrics.host", "must be an IP address", ""),
    ("[metrics]\nbind = '0.0.0.0'", "metrics.bind", "unknown key", "known keys of [metrics]: "),
    ("[metrics]\nport = '0.0.0.0:9464'", "metrics.port", "whole number", ""),
    ("[metrics]\nport = -1", "metrics.port", "at least 0", ""),
    ("[metrics]\nport = 65536", "metrics.port", "65535", ""),
    ("[gauges]\nport = 1", "gauges", "unknown key", "known tables"),
]
BAD_FOR_ALL_SITES = [
    ("[logging]\nfile = '/var/log/a.log'", "logging.file", "one file for all sites", "relative to the run folder"),
    ("[logging]\njson-file = '../a.jsonl'", "logging.json-file", "one file for all sites", "relative"),
    ("[metrics]\nport = 65533", "metrics.port", "the first of 4 ports", "lower it"),
]


@pytest.mark.parametrize(
    ("load", "before", "text", "key", "why", "hint"),
    [
        *[(load_federation, FEDERATION, *wrong) for wrong in BAD + BAD_FOR_ALL_SITES],
        *[(load_source, SOURCE, *wrong) for wrong in BAD],
    ],
)
def test_a_wrong_setting_is_named_with_a_hint(
    file: Path, load: Callable[[Path], object], before: str, text: str, key: str, why: str, hint: str
) -> None:
    file.write_text(f"{before}\n{text}\n")
    with pytest.raises(ConfigError) as caught:
        load(file)
    assert (caught.value.key, caught.value.exit_code) == (key, ExitCode.CONFIG)
    assert why in caught.value.why
    assert hint in caught.value.hint
    assert str(caught.value).isprintable()


def test_without_a_word_nothing_is_logged_and_no_port_is_opened(file: Path) -> None:
    file.write_text(FEDERATION)
    config = load_federation(file)
    assert (config.logging, config.metrics) == (LoggingSection(), MetricsSection())
    assert not config.logging.is_on
    assert (config.metrics.host, config.metrics.port) == ("127.0.0.1", 0)
    for site in ("target", *SITES):
        assert "metrics" not in tomllib.loads(kit_settings_toml(config, site, "a:1"))


def test_every_site_of_a_run_keeps_the_same_logs_and_has_a_port_of_its_own(file: Path, tmp_path: Path) -> None:
    file.write_text(
        FEDERATION + "[logging]\nfile = 'site.log'\nlevel = 'debug'\n[metrics]\nport = 9464\nhost = '0.0.0.0'\n"
    )
    config = load_federation(file, ["logging.json-file=logs/site.jsonl"], {"SECUREFDA_LOGGING_BACKUPS": "2"})
    (tmp_path / "aggregator.toml").write_text(aggregator_toml(config, tmp_path, tmp_path, 0))
    target = load_aggregator(tmp_path / "aggregator.toml")
    sources = []
    for site in SITES:
        (tmp_path / "source.toml").write_text(source_toml(config, tmp_path, tmp_path, 0, site=site))
        sources.append(load_source(tmp_path / "source.toml"))
    expected = LoggingSection(file="site.log", json_file="logs/site.jsonl", level="debug", backups=2)
    assert {site.logging for site in (target, *sources)} == {expected}
    assert [site.metrics.port for site in (target, *sources)] == [9464, 9465, 9466, 9467]
    assert [site.metrics.host for site in (target, *sources)] == ["0.0.0.0", *["127.0.0.1"] * 3]


def test_kits_of_one_federation_can_run_on_one_machine(file: Path) -> None:
    file.write_text(FEDERATION + "[metrics]\nport = 9464\n")
    config = load_federation(file)
    texts = [kit_settings_toml(config, site, "a:1") for site in ("target", *SITES, "one-that-came-later")]
    assert [tomllib.loads(text)["metrics"]["port"] for text in texts] == [9464, 9465, 9466, 9467, 9468]


@pytest.mark.parametrize("log", ["/var/log/securefda/site.log", "../site.log", "site.log"])
def test_a_site_may_keep_its_log_anywhere(file: Path, log: str) -> None:
    file.write_text(f"{SOURCE}[logging]\nfile = '{log}'\n")
    assert load_source(file).logging.file == log
