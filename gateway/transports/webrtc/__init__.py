"""Calls over WebRTC: the peer (media and data channel), and the signalling around it."""
