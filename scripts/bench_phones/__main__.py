"""``make bench-phones``: what a phone call costs over SIP and Twilio's media WebSocket, and how many a core holds."""

from __future__ import annotations

import sys
from itertools import product

from scripts.call_cost.bench import Measured, Plan
from scripts.call_cost.command import parser_of, plan_of, run
from scripts.call_cost.servers import PORT, Subject, fetch_silero, gateway
from scripts.call_cost.windows import TALKERS

USUAL = Plan(calls=(50, 100), climb=(60, 480))
QUICK = Plan(calls=(20,), rounds=1, ramp_s=2.0, window_s=10.0)
URLS = {"sip": f"sip:default@127.0.0.1:{PORT}", "twilio": f"twilio+ws://127.0.0.1:{PORT}/v1/carriers/twilio/stream"}
SCENARIOS = {"echo": TALKERS, "call": "talk"}
VADS = {"on": "silero", "off": "energy"}
AIMS = {"echo, VAD on": 120, "echo, VAD off": 250}
"""Calls that a core shall hold."""

SETTINGS = {
    "SIP__ENABLED": "true",
    "SIP__PORT": PORT,
    "SIP__TRANSPORTS": "udp",
    "SIP__REQUESTS_PER_S": "10000",
    "TWILIO__ENABLED": "true",
    "TWILIO__ALLOW_UNSIGNED": "true",
}


def subject(wire: str, behind: str, vad: str) -> Subject:
    """The gateway: what calls come over, what stands behind them, and whether Silero listens."""
    module = "scripts.bench_phones.echo" if behind == "echo" else "gateway.cli"
    command, environment = gateway(SETTINGS | {"ENGINES__VAD": VADS[vad]}, module=module)
    return Subject(wire, f"{behind}, VAD {vad}", command, URLS[wire], SCENARIOS[behind], environment)


def verdicts(measured: Measured) -> str:
    lines = []
    for climbed in measured.climbs:
        if (aim := AIMS.get(climbed.asked)) is not None:
            broke = climbed.broke is not None and climbed.broke.calls <= aim
            judged = "met" if climbed.held >= aim else "MISSED" if broke else "not shown"
            lines.append(f"- {climbed.subject} {climbed.asked}: aim {aim}: {judged}")
    return "\n".join(lines)


def main() -> int:
    parser = parser_of("scripts.bench_phones", __doc__)
    parser.add_argument("--wires", default=",".join(URLS), help="which to measure (sip,twilio)")
    parser.add_argument("--subjects", default=",".join(SCENARIOS), help="what stands behind them (echo,call)")
    parser.add_argument("--vad", default=",".join(VADS), help="whether Silero listens (on,off)")
    options = parser.parse_args()
    cases = product(options.wires.split(","), options.subjects.split(","), options.vad.split(","))
    fetch_silero()
    subjects = [subject(*case) for case in cases]
    return run(subjects, plan_of(options, USUAL, QUICK), verdicts, climbing=subjects, save=options.json)


if __name__ == "__main__":
    sys.exit(main())
