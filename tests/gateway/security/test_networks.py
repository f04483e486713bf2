from __future__ import annotations

import pytest

from gateway.security.networks import Networks, is_loopback


@pytest.mark.parametrize(
    ("host", "inside"),
    [
        ("10.1.2.3", True),
        ("::ffff:10.1.2.3", True),
        ("11.1.2.3", False),
        ("2001:db8::7", True),
        ("[2001:db8::7]", True),
        ("2001:db8::7%eth0", True),
        ("2001:db9::7", False),
        ("pbx.example", False),
        ("", False),
    ],
)
def test_an_address_is_found_however_a_socket_writes_it(host: str, inside: bool) -> None:
    assert (host in Networks(["10.0.0.0/8", "2001:db8::/32"])) is inside


def test_what_is_no_network_is_refused() -> None:
    with pytest.raises(ValueError, match="host bits"):
        Networks(["10.0.0.1/8"])
    assert not Networks([])


def test_loopback_is_loopback_by_either_family() -> None:
    assert is_loopback("::ffff:127.0.0.1")
    assert not is_loopback("::ffff:10.0.0.1")
