"""Asterisk: AudioSocket (TCP) and chan_websocket."""
