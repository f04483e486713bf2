"""Place one call on whatever transport its URL names."""

from __future__ import annotations

from loadtest.address import call_address
from loadtest.audiosocket_call import dial_audiosocket
from loadtest.call import CallOver, CallPlan, CallTape, Transport, Wire, no_call
from loadtest.holding import hold_call
from loadtest.phone_address import audiosocket_address, sip_address
from loadtest.sip_call import dial_sip
from loadtest.ticker import ticking
from loadtest.twilio_call import dial_twilio
from loadtest.websocket_call import dial_websocket


async def place_planned_call(plan: CallPlan) -> CallTape:
    """Place the call and stay until its script is over, the other side ends it, or ``max_seconds`` are up.

    Failures to connect are reported in the tape, not raised. Raises as :func:`dial` does.
    """
    try:
        wire = await dial(plan)
    except CallOver as over:
        return no_call(over, plan.rate_hz)
    async with ticking() as ticker:
        return await hold_call(plan, wire, ticker)


async def dial(plan: CallPlan) -> Wire:
    """Connect and wait until the call is up. Raises :class:`CallOver` if that did not come about, and
    :class:`ValueError` for a URL that is none, and for lines at another rate than its wire speaks at."""
    address = call_address(plan.url, plan.agent)
    if plan.rate_hz != address.rate_hz:
        raise ValueError(f"{plan.url} is spoken at {address.rate_hz} Hz, not at {plan.rate_hz}")
    match address.transport:
        case Transport.WEBRTC:
            from loadtest.webrtc_call import dial_webrtc  # aiortc takes half a second to import

            return await dial_webrtc(plan, address)
        case Transport.SIP:
            return await dial_sip(plan, sip_address(plan.url, plan.agent))
        case Transport.TWILIO:
            return await dial_twilio(plan, address.url)
        case Transport.AUDIOSOCKET:
            return await dial_audiosocket(plan, audiosocket_address(plan.url))
        case Transport.WEBSOCKET:
            return await dial_websocket(plan, address.url)
