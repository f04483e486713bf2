"""``make bench-media``: what a WebRTC call costs here, on stock aiortc and on pipecat's SmallWebRTC transport.

Three processes: this one (``measure``), one server pinned to one core (``server``), the callers pinned to another
(``callers``). The server of pipecat runs in a virtual environment of its own: what the two environments both run may
import nothing but aiortc, PyAV, NumPy and the standard library.
"""
