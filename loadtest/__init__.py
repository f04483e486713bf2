"""Simulated callers that know nothing of the gateway's insides."""
