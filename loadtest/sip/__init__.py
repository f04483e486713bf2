"""A SIP phone that calls, for the load test: no code of the gateway's, so that neither's mistakes hide in the other."""
