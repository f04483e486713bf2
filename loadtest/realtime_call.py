"""Place one call on whatever transport its URL names."""

from __future__ import annotations

from loadtest.address import call_address
from loadtest.call import CallOver, CallPlan, CallTape, Transport, Wire, hold_call, no_call
from loadtest.websocket_call import dial_websocket


async def place_realtime_call(plan: CallPlan) -> CallTape:
    """Place the call and stay until its script is over, the other side ends it, or ``max_seconds`` are up.

    Failures to connect are reported in the tape, not raised. Raises :class:`ValueError` for a URL that is none.
    """
    address = call_address(plan.url, plan.agent)
    try:
        wire: Wire
        if address.transport is Transport.WEBRTC:
            from loadtest.webrtc_call import dial_webrtc  # aiortc takes half a second to import

            wire = await dial_webrtc(plan, address)
        else:
            wire = await dial_websocket(plan, address.url)
    except CallOver as over:
        return no_call(over)
    return await hold_call(plan, wire)
