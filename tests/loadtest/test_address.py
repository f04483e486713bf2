from __future__ import annotations

import pytest

from loadtest.address import SECRETS_PATH, CallAddress, call_address
from loadtest.call import Transport


@pytest.mark.parametrize(
    ("url", "agent", "called"),
    [
        ("ws://h:1/v1/realtime?agent=a&x=1", "b", "ws://h:1/v1/realtime?x=1&agent=b"),
        ("wss://h/v1/realtime", None, "wss://h/v1/realtime"),
        ("ws://h/", None, "ws://h/"),
        ("http://h:1", None, "http://h:1/v1/realtime/calls"),
        ("http://h:1/", "front desk", "http://h:1/v1/realtime/calls?agent=front+desk"),
        ("https://h/v1", None, "https://h/v1/realtime/calls"),
        ("http://h/v1/realtime?agent=a", "b", "http://h/v1/realtime/calls?agent=b"),
        ("http://h/v1/realtime/calls", None, "http://h/v1/realtime/calls"),
        ("https://h/voice/v1/realtime/calls/", None, "https://h/voice/v1/realtime/calls"),
        ("https://h/voice", None, "https://h/voice/v1/realtime/calls"),
    ],
)
def test_what_is_called(url: str, agent: str | None, called: str) -> None:
    address = call_address(url, agent)
    assert address.url == called
    assert (address.transport is Transport.WEBRTC) == url.startswith("http")


@pytest.mark.parametrize("url", ["ftp://h/", "h:80", "ws:///path", "http://", "", "http://:80", "http://h:0"])
def test_what_cannot_be_called(url: str) -> None:
    with pytest.raises(ValueError, match="not a ws://"):
        call_address(url, None)


@pytest.mark.parametrize("url", ["http://h:99999", "ws://h:x/", "http://[::1"])
def test_what_is_no_url_at_all(url: str) -> None:
    with pytest.raises(ValueError, match=r"[Pp]ort|IPv6"):
        call_address(url, None)


@pytest.mark.parametrize(
    ("url", "beside"),
    [
        ("ws://h:1/v1/realtime?agent=a", "http://h:1/v1/realtime/client_secrets"),
        ("wss://h/", "https://h/v1/realtime/client_secrets"),
        ("https://h/voice", "https://h/voice/v1/realtime/client_secrets"),
    ],
)
def test_other_paths_of_the_same_server(url: str, beside: str) -> None:
    assert call_address(url, None).beside(SECRETS_PATH) == beside
    assert isinstance(call_address(url, None), CallAddress)
