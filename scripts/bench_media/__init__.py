"""``make bench-media``: what a WebRTC call costs here, on stock aiortc and on pipecat's SmallWebRTC transport. See
docs/benchmarks/media.md.

The server of pipecat runs in a virtual environment of its own: what the two environments both run (``server``,
``talk``) may import nothing but aiortc, PyAV, NumPy, Starlette, uvicorn and the standard library.
"""
