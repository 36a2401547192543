"""No address that is shown has a login in it."""

import pytest

from enginehouse_hosts.terminal.address import host_of, without_login


@pytest.mark.parametrize(
    "address,shown,host",
    [
        ("https://host.test/v1", "https://host.test/v1", "host.test"),
        ("http://ada:geheim@host.test:8080/v1", "http://host.test:8080/v1", "host.test:8080"),
        ("ada:geheim@host.test/v1", "host.test/v1", "host.test"),
        ("http://ada:ge@he/im@host.test/v1", "http://host.test/v1", "host.test"),
        ("http://ada:ge#he?im@host.test", "http://host.test", "host.test"),
        ("https://host.test/v1?key=geheim#geheim", "https://host.test/v1", "host.test"),
        ("geheim://geheim:x@host.test", "host.test", "host.test"),
        ("ada:geh://eim@host.test", "host.test", "host.test"),
        ("http://[::1]:80/v1", "http://[::1]:80/v1", "[::1]:80"),
        ("\x1b[2Jhttp://h", "␛[2Jhttp://h", "h"),
        ("", "", ""),
    ],
)
def test_an_address_is_shown_without_what_could_be_a_login(address: str, shown: str, host: str) -> None:
    assert without_login(address) == shown
    assert host_of(address) == host
