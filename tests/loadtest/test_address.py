from __future__ import annotations

import pytest

from loadtest.address import SECRETS_PATH, CallAddress, call_address, may_be_told_the_key, shown_url
from loadtest.call import Transport
from loadtest.phone_address import SipAddress, audiosocket_address, sip_address
from loadtest.sip.message import SipUri


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
        ("sip:h", None, "sip:h"),
        ("sip:desk@h:5070;transport=tcp", "sales", "sip:sales@h:5070;transport=tcp"),
        ("twilio+wss://h/v1/carriers/twilio/stream", "sales", "wss://h/v1/carriers/twilio/stream"),
        ("audiosocket://h:9092?rate=16000", None, "audiosocket://h:9092?rate=16000"),
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


@pytest.mark.parametrize(
    ("url", "rate_hz"),
    [("ws://h/", 24_000), ("sip:h", 8_000), ("twilio+ws://h/", 8_000), ("audiosocket://h:1?rate=48000", 48_000)],
)
def test_the_rate_that_is_spoken_at(url: str, rate_hz: int) -> None:
    assert call_address(url, None).rate_hz == rate_hz


def test_where_a_sip_call_goes() -> None:
    assert sip_address("sip:a@[::1]", None) == SipAddress(SipUri("a", "::1"), "::1", 5060, False)
    address = sip_address("sip:a@h:5070;transport=TCP", "b")
    assert (address.target.user, address.host, address.port, address.tcp) == ("b", "h", 5070, True)


def test_whose_call_an_audiosocket_call_is() -> None:
    call = "40325ec2-5efd-4bd3-805f-53576e581d13"
    assert str(audiosocket_address(f"audiosocket://h:1/{call}").call) == call
    assert audiosocket_address("audiosocket://h:1").call != audiosocket_address("audiosocket://h:1").call


@pytest.mark.parametrize("tail", ["/x", "?rate=x", "?rate=11025", "?rate=8000&x=1"])
def test_audiosocket_addresses_that_mean_nothing(tail: str) -> None:
    with pytest.raises(ValueError, match=r"audiosocket|AudioSocket"):
        audiosocket_address("audiosocket://h:1" + tail)


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        (
            "ws://h:1/v1/realtime?agent=front+desk&token=s3cret&debug",
            "ws://h:1/v1/realtime?agent=front+desk&token=…&debug",
        ),
        ("wss://user:s3cret@h/v1/realtime", "wss://user:…@h/v1/realtime"),
        ("sip:sales@127.0.0.1:5060;transport=tcp", "sip:sales@127.0.0.1:5060;transport=tcp"),
        ("http://[::1", "a URL that is none"),
    ],
)
def test_no_secret_of_a_url_is_shown(url: str, shown: str) -> None:
    assert shown_url(url) == shown


@pytest.mark.parametrize(
    ("url", "called", "told"),
    [
        ("http://h:9/metrics", ["ws://h:1/v1/realtime"], True),
        ("http://h:9/metrics", ["sip:sales@h:5060;transport=tcp"], True),
        ("https://h/metrics", ["twilio+ws://other/x", "wss://u:p@h/"], True),
        ("http://h:9/metrics", ["wss://h/", "twilio+wss://h/x", "https://h"], False),
        ("http://h:9/metrics", ["wss://h/", "ws://h:8080/"], True),
        ("http://127.0.0.1:9/metrics", ["wss://127.0.0.1/"], True),
        ("https://prometheus.example/metrics", ["ws://h:1/v1/realtime", "sip:sales@h"], False),
        (None, ["ws://h"], False),
    ],
)
def test_only_a_machine_that_is_called_is_told_the_key_and_not_in_clear_for_it(
    url: str | None, called: list[str], told: bool
) -> None:
    assert may_be_told_the_key(url, called) is told
