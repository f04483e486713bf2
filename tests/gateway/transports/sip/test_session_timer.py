from __future__ import annotations

import pytest

from gateway.transports.sip.message import Headers
from gateway.transports.sip.session_timer import (
    IntervalTooSmall,
    SessionInterval,
    of_request,
    of_response,
    read,
)


def headers(**given: str) -> Headers:
    return Headers((name.replace("_", "-"), value) for name, value in given.items())


@pytest.mark.parametrize(
    ("given", "ours_s", "agreed"),
    [
        ({}, 0, None),
        ({}, 1_800, SessionInterval(1_800, "uas")),
        ({"supported": "timer"}, 1_800, SessionInterval(1_800, "uac")),
        ({"supported": "timer", "min_se": "3600"}, 1_800, SessionInterval(3_600, "uac")),
        ({"supported": "timer", "session_expires": "600"}, 1_800, SessionInterval(600, "uac")),
        ({"supported": "timer", "session_expires": "600;refresher=uas"}, 0, SessionInterval(600, "uas")),
        ({"require": "timer", "session_expires": "7200 ; Refresher = UAC"}, 1_800, SessionInterval(1_800, "uac")),
        ({"supported": "timer", "session_expires": "7200", "min_se": "5000"}, 1_800, SessionInterval(5_000, "uac")),
        ({"session_expires": "30"}, 1_800, SessionInterval(90, "uas")),
        ({"session_expires": "600;refresher=uac"}, 1_800, SessionInterval(600, "uas")),
        ({"supported": "timer", "session_expires": "soon"}, 0, None),
        ({"supported": "timer", "session_expires": "999999999", "min_se": "x"}, 0, SessionInterval(86_400, "uac")),
    ],
)
def test_what_is_agreed(given: dict[str, str], ours_s: int, agreed: SessionInterval | None) -> None:
    assert of_request(headers(**given), ours_s=ours_s) == agreed


def test_too_small() -> None:
    with pytest.raises(IntervalTooSmall) as caught:
        of_request(headers(supported="timer", session_expires="60"), ours_s=0)
    assert caught.value.min_se_s == 90


def test_what_the_other_side_answered() -> None:
    assert of_response(headers()) is None
    assert of_response(headers(session_expires="10")) == SessionInterval(90, "uac")
    assert of_response(headers(session_expires="600;refresher=uas")) == SessionInterval(600, "uas")
    assert read(headers(session_expires="-1")) is None


def test_times() -> None:
    interval = SessionInterval(90, "uac")
    assert interval.refresh_after_s == 45
    assert interval.give_up_after_s == 60
    assert SessionInterval(1_800, "uas").give_up_after_s == 1_768
    assert interval.header() == ("session-expires", "90;refresher=uac")
