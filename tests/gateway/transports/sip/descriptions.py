"""Session descriptions as peers write them."""

from __future__ import annotations

KEY = "inline:WVNfX19zZW1jdGwgKCkgewkyMjA7fQp9CnVubGVz"
"""30 bytes: RFC 4568's own example."""


def sdp(*media: str, ip: str = "192.0.2.7", session: tuple[str, ...] = ()) -> str:
    """``media``: lines of one stream each, joined by ``|``."""
    lines = ["v=0", f"o=alice 1 1 IN IP4 {ip}", "s=-", f"c=IN IP4 {ip}", "t=0 0", *session]
    for stream in media:
        lines += stream.split("|")
    return "\r\n".join(lines) + "\r\n"


PCMU = "m=audio 4000 RTP/AVP 0 101|a=rtpmap:0 PCMU/8000|a=rtpmap:101 telephone-event/8000|a=fmtp:101 0-15"
SECURE = f"m=audio 4000 RTP/SAVP 0|a=crypto:1 AES_CM_128_HMAC_SHA1_80 {KEY}"

LINPHONE = (
    "v=0\r\no=- 3861 2261 IN IP4 10.0.0.5\r\ns=Talk\r\nc=IN IP4 10.0.0.5\r\nt=0 0\r\n"
    "a=rtcp-xr:rcvr-rtt=all:10000 stat-summary=loss,dup,jitt,TTL voip-metrics\r\na=record:off\r\n"
    "m=audio 7078 RTP/AVP 96 97 98 0 8 18 101 99 100\r\na=rtpmap:96 opus/48000/2\r\na=fmtp:96 useinbandfec=1\r\n"
    "a=rtpmap:97 speex/16000\r\na=fmtp:97 vbr=on\r\na=rtpmap:98 speex/8000\r\na=fmtp:98 vbr=on\r\n"
    "a=fmtp:18 annexb=yes\r\na=rtpmap:101 telephone-event/48000\r\na=rtpmap:99 telephone-event/16000\r\n"
    "a=rtpmap:100 telephone-event/8000\r\na=rtcp-fb:* trr-int 5000\r\na=rtcp-fb:* ccm tmmbr\r\n"
    "m=video 9078 RTP/AVP 96\r\na=rtpmap:96 VP8/90000\r\n"
)

ASTERISK = (
    "v=0\r\no=- 1217 1217 IN IP4 203.0.113.9\r\ns=Asterisk\r\nc=IN IP4 203.0.113.9\r\nt=0 0\r\n"
    "m=audio 15220 RTP/AVP 8 0 9 13 101\r\na=rtpmap:8 PCMA/8000\r\na=rtpmap:0 PCMU/8000\r\na=rtpmap:9 G722/8000\r\n"
    "a=rtpmap:13 CN/8000\r\na=rtpmap:101 telephone-event/8000\r\na=fmtp:101 0-16\r\na=ptime:20\r\na=maxptime:150\r\n"
    "a=sendrecv\r\n"
)
