"""RTP and RTCP (RFC 3550), whoever brings the packets: browsers and phones alike."""
