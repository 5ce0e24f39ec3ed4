"""Addresses and the file that holds them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from securefda.errors import ConfigError
from securefda.site.endpoints import Address, Endpoints, SiteSpec


@pytest.mark.parametrize(
    ("text", "host", "port"),
    [
        ("127.0.0.1:8443", "127.0.0.1", 8443),
        ("[::1]:1", "::1", 1),
        ("a.example.org:65535", "a.example.org", 65535),
        ("localhost:00080", "localhost", 80),
    ],
)
def test_address_reads_host_and_port(text: str, host: str, port: int) -> None:
    assert Address.parse(text) == Address(host, port)
    assert Address.parse(str(Address(host, port))) == Address(host, port)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "host",
        "host:",
        ":1",
        "host:0",
        "host:65536",
        "host:-1",
        "host:1x",
        "::1:80",
        "a b:1",
        "-a:1",
        "a..b:1",
        "ä:1",
        "a:1\n",
        'a":1',
        "host:٣",
        "[fe80::1%eth0]:1",
        "[fe80::1%x\nkey fingerprint  0123\x1b[8m]:1",
    ],
)
def test_malformed_address_is_refused(text: str) -> None:
    with pytest.raises(ConfigError):
        Address.parse(text)


def test_the_hint_for_an_address_with_a_scope_says_what_to_leave_out() -> None:
    with pytest.raises(ConfigError) as caught:
        Address("fe80::1%eth0", 8443)
    assert caught.value.hint == "leave out the % and what follows: it names an interface of one machine"


@given(st.text())
def test_any_text_is_an_address_or_a_config_error(text: str) -> None:
    try:
        address = Address.parse(text)
    except ConfigError:
        return
    assert Address.parse(str(address)) == address


@pytest.mark.parametrize("host", ["a.example.org", "127.0.0.1", "::1"])
def test_file_gives_back_what_was_written(host: str) -> None:
    endpoints = Endpoints(Address(host, 8443), host)
    assert Endpoints.from_toml(endpoints.to_toml()) == endpoints


@pytest.mark.parametrize("entity", ["", " ", "a ", "a\x1b[8m", "a" * 201])
def test_the_legal_entity_of_a_site_is_printable_and_has_a_length(entity: str) -> None:
    with pytest.raises(ConfigError, match="legal entity of lyon: must "):
        SiteSpec("lyon", "source", entity)


def test_unknown_key_names_the_nearest_known_one() -> None:
    data = Endpoints(Address("a", 1), "a").to_toml().replace(b"server-name", b"servername")
    with pytest.raises(ConfigError, match=r"aggregator\.servername: is no known key") as caught:
        Endpoints.from_toml(data)
    assert caught.value.hint == "did you mean aggregator.server-name?"


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"[", "not valid TOML"),
        (b"\xff", "not valid TOML"),
        (b"", "aggregator: is missing"),
        (b"aggregator = 1", "must be a table"),
        (b'[aggregator]\naddress = "a:1"', "server-name: is missing"),
        (b'[aggregator]\naddress = 1\nserver-name = "a"', "must be a string"),
        (b'[aggregator]\naddress = "a"\nserver-name = "a"', "is not host:port"),
        (b'[aggregator]\naddress = "a:1"\nserver-name = ""', "neither a host name"),
        (b'[aggregator]\naddress = "[fe80::1%x\\u001b]:1"\nserver-name = "a"', "neither a host name"),
        (b'[aggregator]\naddress = "a:1"\nserver-name = "fe80::1%x\\u001b"', "neither a host name"),
        (b'[agregator]\naddress = "a:1"', "agregator: is no known key"),
    ],
)
def test_malformed_file_is_one_clear_error(data: bytes, why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        Endpoints.from_toml(data)


def test_an_underscore_in_a_host_name_is_explained() -> None:
    with pytest.raises(ConfigError, match="neither a host name") as caught:
        Address.parse("fl_server.example.org:8443")
    assert caught.value.hint.startswith("names of hosts have no _")
