"""``make bench-phones``: what a phone call costs here, over SIP with G.711 and over Twilio's media WebSocket.

Three processes: this one (``measure``), the gateway pinned to one core (``server``), the callers pinned to another
(``callers``). The gateway is the real one, with its real wires; what stands behind a call is either the whole call
(session, pacing, an agent that talks without end) or an echo.
"""
