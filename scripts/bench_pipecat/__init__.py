"""The same callers at this gateway and at pipecat: what a call costs each of them. See docs/benchmarks/pipecat.md.

Both hear with Silero and answer over Twilio's media WebSocket, with the same scripted engines at the same delays, each
in one process on one core; the callers of ``offhook loadtest`` are on another.
"""
