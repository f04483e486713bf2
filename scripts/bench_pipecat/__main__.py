"""``make bench-pipecat``: what a call costs this gateway, and what it costs pipecat."""

from __future__ import annotations

import sys

from scripts.call_cost.bench import Measured, Plan
from scripts.call_cost.command import parser_of, plan_of, run
from scripts.call_cost.servers import PORT, Subject, fetch_silero, gateway
from scripts.call_cost.table import ratios

USUAL = Plan(calls=(10, 20), rounds=2, window_s=30.0)
QUICK = Plan(calls=(5,), rounds=1, ramp_s=2.0, window_s=12.0)
URL = f"twilio+ws://127.0.0.1:{PORT}/v1/carriers/twilio/stream"
SCENARIO = "talk"
DELAYS_MS = {"STT_MS": "100", "LLM_FIRST_TOKEN_MS": "150", "LLM_TOKEN_MS": "10", "TTS_MS": "100"}
"""Of the scripted engines of both, by the names that they have in our settings."""

AIMS = {("pipecat", SCENARIO): 0.5}


def ours() -> Subject:
    settings = {"TWILIO__ENABLED": "true", "TWILIO__ALLOW_UNSIGNED": "true", "ENGINES__VAD": "silero"}
    command, environment = gateway(settings | {f"NULL__{name}": value for name, value in DELAYS_MS.items()})
    return Subject("offhook", SCENARIO, command, URL, SCENARIO, environment)


def pipecat(python: str, heard_hz: int) -> Subject:
    """``heard_hz``: of its caller audio. 16000 is its default, and what our engines hear; 8000 is for its phones."""
    module = "scripts.bench_pipecat.pipecat_server"
    command = (python, "-m", module, PORT, ",".join(DELAYS_MS.values()), str(heard_hz))
    return Subject("pipecat", SCENARIO, command, URL, SCENARIO, {"LOGURU_LEVEL": "ERROR"})


def beside(measured: Measured) -> str:
    return ratios(measured.windows, "offhook", AIMS)


def main() -> int:
    parser = parser_of("scripts.bench_pipecat", __doc__)
    parser.add_argument("--pipecat-python", required=True, help="the interpreter of pipecat's environment")
    parser.add_argument("--pipecat-hz", type=int, default=16_000, help="of pipecat's caller audio: 8000 or 16000")
    options = parser.parse_args()
    fetch_silero()
    subjects = [ours(), pipecat(options.pipecat_python, options.pipecat_hz)]
    return run(subjects, plan_of(options, USUAL, QUICK), beside, climbing=subjects, save=options.json)


if __name__ == "__main__":
    sys.exit(main())
