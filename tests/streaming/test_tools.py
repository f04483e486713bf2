"""Arguments of tools, read as models write them; what cannot be done is said with a code."""

from __future__ import annotations

import pytest

from streaming.config import ResponseOptions, SessionConfig
from streaming.tools import HoldFor, Press, ToolError, TransferTo, read_call

CONFIG = SessionConfig(
    tools=("end_call", "transfer", "send_dtmf", "hold"), transfer_targets=(("Sales", "sip:sales@pbx.example"),)
)


@pytest.mark.parametrize(
    ("name", "arguments", "action"),
    [
        ("transfer", '{"target": " sales "}', TransferTo("Sales", "sip:sales@pbx.example")),
        ("send_dtmf", '{"digits": 4711}', Press("4711")),
        ("send_dtmf", '{"digits": "1-2 a#"}', Press("12A#")),
        ("hold", '{"seconds": "45"}', HoldFor(45)),
        ("hold", '{"seconds": 2.4}', HoldFor(2)),
        ("hold", "null", HoldFor(30)),
    ],
)
def test_what_a_model_means_is_understood(name: str, arguments: str, action: object) -> None:
    assert read_call(name, arguments, CONFIG) == action


@pytest.mark.parametrize(
    ("name", "arguments", "code"),
    [
        ("transfer", '{"target": "the moon"}', "unknown_target"),
        ("transfer", '{"target": 7}', "unknown_target"),
        ("send_dtmf", '{"digits": true}', "invalid_arguments"),
        ("send_dtmf", '{"digits": "x"}', "invalid_arguments"),
        ("hold", '{"seconds": "long"}', "invalid_arguments"),
        ("hold", '{"seconds": true}', "invalid_arguments"),
        ("hold", '{"seconds": 301}', "invalid_arguments"),
        ("hold", "[1]", "invalid_arguments"),
        ("hold", "{oops", "invalid_arguments"),
    ],
)
def test_what_cannot_be_done_is_said(name: str, arguments: str, code: str) -> None:
    with pytest.raises(ToolError) as refused:
        read_call(name, arguments, CONFIG)
    assert refused.value.code == code


def test_a_response_may_be_made_without_tools() -> None:
    assert ResponseOptions(tools=False).over(CONFIG).tools == ()
    assert ResponseOptions().over(CONFIG).tools == CONFIG.tools
