"""The English voices of Kokoro-82M v1.0: first letter the accent they were trained in, second f or m."""

from __future__ import annotations

DEFAULT_VOICE = "af_heart"
VOICES = (
    DEFAULT_VOICE,
    *("af_alloy", "af_aoede", "af_bella", "af_jessica", "af_kore", "af_nicole", "af_nova", "af_river", "af_sarah"),
    *("af_sky", "am_adam", "am_echo", "am_eric", "am_fenrir", "am_liam", "am_michael", "am_onyx", "am_puck"),
    *("am_santa", "bf_alice", "bf_emma", "bf_isabella", "bf_lily", "bm_daniel", "bm_fable", "bm_george", "bm_lewis"),
)
