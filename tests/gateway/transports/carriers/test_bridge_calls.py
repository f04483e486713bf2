"""The calls that all carriers have, over Vonage and jambonz, from the webhook to the end, in virtual time."""

from __future__ import annotations

import pytest

from tests.gateway.transports.carriers import test_calls
from tests.gateway.transports.carriers.bridges import JAMBONZ, VONAGE, JsonVendor

EVERY = pytest.mark.parametrize("vendor", [VONAGE, JAMBONZ], ids=lambda vendor: vendor.name)


@EVERY
@pytest.mark.parametrize(
    "case",
    [
        test_calls.test_a_greeting_a_turn_and_a_hang_up_by_the_caller,
        test_calls.test_a_barge_in_stops_the_sound_there_and_the_context_holds_what_the_marks_say,
        test_calls.test_keys_reach_the_conversation,
        test_calls.test_who_answers_is_named_by_the_webhooks_address,
        test_calls.test_an_agent_that_there_is_not_is_refused,
        test_calls.test_a_call_that_we_hang_up_ends_there,
        test_calls.test_a_ticket_opens_one_stream,
    ],
    ids=lambda case: case.__name__,
)
def test_call(vendor: JsonVendor, case: object) -> None:
    assert callable(case)
    case(vendor)
