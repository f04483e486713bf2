"""``make bench-phones``: what a phone call costs here, over SIP with G.711 and over Twilio's media WebSocket. See
docs/benchmarks/phones.md.

The gateway is the real one, with its real wires; behind a call stands the whole of it (session, pacing, scripted
engines), or an echo.
"""
