"""What is made of a server's refusal: its own words where it has some, a guess where it has none."""

from __future__ import annotations

import pytest

from loadtest.call import CallPlan, EndCause
from loadtest.refusal import refusal
from loadtest.sip.message import SipMessage, parse_uri
from loadtest.sip.refusal import refused

DISABLED = b'{"error": {"code": "carrier_unknown", "message": "There is no such carrier here, or it is not enabled."}}'


@pytest.mark.parametrize(
    ("body", "problem"),
    [
        (DISABLED, "carrier_unknown: There is no such carrier here, or it is not enabled."),
        (b"<h1>Not Found</h1>", "no agent named sales (<h1>Not Found</h1>)"),
        (b"", "no agent named sales"),
    ],
)
def test_a_404_blames_the_agent_only_where_the_server_does_not_say_what_is_missing(body: bytes, problem: str) -> None:
    over = refusal(404, body, "ws://h/stream", CallPlan("ws://h/stream", (), agent="sales"))
    assert (over.cause, over.problem) == (EndCause.NOT_FOUND, f"404 from ws://h/stream: {problem}")


@pytest.mark.parametrize(
    ("headers", "problem"),
    [
        ((), "488 Not Acceptable Here from sip:sales@h"),
        ((("warning", '399 offhook "SRTP is needed"'),), "488 Not Acceptable Here from sip:sales@h (SRTP is needed)"),
        ((("warning", "399 offhook"),), "488 Not Acceptable Here from sip:sales@h"),
    ],
)
def test_a_sip_server_s_warning_is_passed_on(headers: tuple[tuple[str, str], ...], problem: str) -> None:
    over = refused(SipMessage("SIP/2.0 488 Not Acceptable Here", headers), parse_uri("sip:sales@h"), known=False)
    assert (over.cause, over.problem) == (EndCause.NO_MEDIA, problem)


@pytest.mark.parametrize("status", [429, 503])
def test_too_many_is_a_busy_server_that_said_no(status: int) -> None:
    over = refusal(status, b"", "ws://h/stream", CallPlan("ws://h/stream", ()))
    assert (over.cause, over.problem) == (EndCause.BUSY, f"{status} from ws://h/stream: busy")


@pytest.mark.parametrize(
    ("url", "guess"), [("ws://h/v1/realtime", "not allowed"), ("ws://h", "not allowed, or no path to call")]
)
def test_a_403_may_mean_that_the_path_was_forgotten(url: str, guess: str) -> None:
    over = refusal(403, b"", url, CallPlan(url, ()))
    assert (over.cause, over.problem) == (EndCause.FORBIDDEN, f"403 from {url}: {guess}")
