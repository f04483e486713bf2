"""What the dashboard shows: every panel is a question that somebody asks at night, and its description says which."""

from __future__ import annotations

from scripts.grafana.panels import BAD, GOOD, WATCH, Panel, Query, Row, glance, percentiles
from scripts.grafana.promql import a_minute, grown, or_none, quantile, rate, series, share, total

STAGE = "offhook_turn_stage_seconds"
STAGES = ("decision", "final", "first_token", "first_clause", "first_audio", "first_sent")
TURNED_AWAY = "~busy|overloaded|engines_down|too_many_unconnected|draining"
STRANGERS = "~carrier_signature_.+|carrier_ticket_invalid|sip_dropped|sip_over_rate"
LANE = "host, lane"

ANSWER = ((None, GOOD), (1.2, WATCH), (2.0, BAD))
SHARE = ((None, GOOD), (0.01, WATCH), (0.05, BAD))
LATE = ((None, GOOD), (0.001, WATCH), (0.01, BAD))
FULL = ((None, GOOD), (0.8, WATCH), (0.95, BAD))


def _said(**words: tuple[str, str]) -> list[dict[str, object]]:
    """Values by their words; ``v1`` is 1."""
    options = {name[1:]: {"text": text, "color": colour} for name, (text, colour) in words.items()}
    return [{"type": "value", "options": options}]


YES_NO = _said(v0=("NO", BAD), v1=("yes", GOOD))
LADDER = _said(v0=("none", GOOD), v1=("no speculation", WATCH), v2=("short clauses", WATCH), v3=("refuses calls", BAD))
FAKE = [
    *_said(v0=("real", GOOD)),
    {"type": "range", "options": {"from": 1, "to": None, "result": {"text": "FAKE", "color": BAD}}},
]


def at_a_glance() -> Row:
    refused = rate("offhook_calls_refused_total", "5m", reason=TURNED_AWAY)
    asked = f"({total(rate('offhook_calls_admitted_total', '5m'))} + {or_none(total(refused))} > 0)"
    live, limit = series("offhook_calls_live"), series("offhook_calls_limit")
    failed, turns = (
        rate("offhook_events_total", "5m", name="engine_failed"),
        rate(f"{STAGE}_count", "5m", stage="decision"),
    )
    late, sent = rate("offhook_frames_late_total", "5m"), rate("offhook_send_late_seconds_count", "5m")
    return Row(
        "At a glance (of five minutes)",
        [
            glance(
                "Takes calls",
                "Is every gateway ready? NO: it drains or is unwell; /readyz says which and why.",
                f"min({series('offhook_ready')})",
                mappings=YES_NO,
            ),
            glance(
                "Calls up",
                "How many calls are up now, over all gateways?",
                total(live),
                options={"colorMode": "value", "graphMode": "area"},
            ),
            glance(
                "Places taken",
                "How near is it to refusing calls as busy?",
                share(live, limit),
                unit="percentunit",
                steps=FULL,
            ),
            glance(
                "Time to answer, p95",
                "How long do callers wait for the agent, from their last word to its first sound?",
                quantile(0.95, STAGE, window="5m", stage="first_sent"),
                unit="s",
                steps=ANSWER,
            ),
            glance(
                "Calls refused",
                "What share of those who call is turned away?",
                f"{or_none(total(refused))} / {asked}",
                unit="percentunit",
                steps=SHARE,
            ),
            glance(
                "Turns that failed",
                "How often did nobody serve a caller's turn to its end, so that an apology was heard?",
                f"{or_none(total(failed))} / ({total(turns)} > 0)",
                unit="percentunit",
                steps=SHARE,
            ),
            glance(
                "Frames that left late",
                "Does the agent's voice stutter by the gateway's own doing?",
                f"{or_none(total(late))} / ({total(sent)} > 0)",
                unit="percentunit",
                steps=LATE,
            ),
            glance(
                "Engines",
                "Do real models answer? Scripted ones are for load tests; no figure tells of a model then.",
                or_none(f"count({series('offhook_info', fake='true')})"),
                mappings=FAKE,
            ),
        ],
    )


def calls() -> Row:
    return Row(
        "Calls",
        [
            Panel(
                "Calls up, and places",
                "Is there room, on each gateway?",
                [
                    Query(total(series("offhook_calls_live"), "instance"), "{{instance}}"),
                    Query(total(series("offhook_calls_limit"), "instance"), "{{instance}} places"),
                ],
            ),
            Panel(
                "Asked for, a minute",
                "Who got a place, who was refused, and why?",
                [
                    Query(a_minute("offhook_calls_admitted_total"), "admitted"),
                    Query(a_minute("offhook_calls_refused_total", "reason"), "{{reason}}"),
                ],
                stack=True,
            ),
            Panel(
                "Refused for overload, a minute",
                "Which measure was over its limit?",
                [Query(a_minute("offhook_calls_overloaded_total", "measure"), "{{measure}}")],
                stack=True,
            ),
            Panel(
                "How calls ended, a minute",
                "What ends calls, on which transport? Beside hang-ups and transfers: trouble.",
                [Query(a_minute("offhook_calls_total", "cause, transport"), "{{cause}} ({{transport}})")],
                stack=True,
            ),
            Panel(
                "Set-up, p95",
                "How long from a caller's request until media flows?",
                [Query(quantile(0.95, "offhook_call_setup_seconds", "transport"), "{{transport}}")],
                unit="s",
            ),
            Panel(
                "How long calls are",
                "Do people hang up early? A median that falls is often the first sign.",
                percentiles("offhook_call_seconds", (0.1, 0.5, 0.9)),
                unit="s",
            ),
        ],
    )


def what_callers_hear() -> Row:
    stages = [Query(quantile(0.95, STAGE, stage=stage), stage) for stage in STAGES]
    phone, whole = "offhook_phone_frames_total", rate("offhook_phone_frames_total", kind="~in|lost")
    late, sent = rate("offhook_frames_late_total"), rate("offhook_send_late_seconds_count")
    return Row(
        "What callers hear",
        [
            Panel(
                "Time to answer",
                "How long do callers wait? From the last voiced sample to the first frame sent; a client's buffer and "
                "the network come on top.",
                percentiles(STAGE, stage="first_sent"),
                unit="s",
            ),
            Panel(
                "Time to answer, all of it",
                "Are there two crowds, where a percentile shows one?",
                [Query(grown(f"{STAGE}_bucket", "le", stage="first_sent"), "{{le}}")],
                kind="heatmap",
                options={
                    "calculate": False,
                    "color": {"mode": "scheme", "scheme": "Turbo", "steps": 64},
                    "yAxis": {"unit": "s"},
                    "cellGap": 1,
                    "tooltip": {"mode": "single", "yHistogram": True},
                },
            ),
            Panel(
                "Where the time goes, p95",
                "Which stage is it? Each counts from the last voiced sample; the gap below a line is its own.",
                stages,
                unit="s",
            ),
            Panel(
                "Silent after the caller cuts in",
                "How long does the agent talk on, after the onset of an interruption?",
                percentiles(STAGE, stage="cut_to_silence"),
                unit="s",
            ),
            Panel(
                "Frames that left more than 20 ms late",
                "On which transport does the voice stutter?",
                [Query(share(late, sent, "transport"), "{{transport}}")],
                unit="percentunit",
            ),
            Panel(
                "How late frames leave, p99",
                "How near is it to being heard?",
                [Query(quantile(0.99, "offhook_send_late_seconds", "transport"), "{{transport}}")],
                unit="s",
            ),
            Panel(
                "Phone audio that was lost",
                "Is it the network? Of frames that callers sent, in calls that ended.",
                [Query(share(rate(phone, kind=kind), whole), kind) for kind in ("lost", "concealed", "late")],
                unit="percentunit",
            ),
            Panel(
                "Phone jitter",
                "Is it the network? At the end of calls.",
                percentiles("offhook_phone_jitter_seconds"),
                unit="s",
            ),
            Panel(
                "Interruptions, a minute",
                "How often do callers cut in, and how often was it nothing, so that the agent went on?",
                [
                    Query(a_minute("offhook_events_total", name="barge_in_committed"), "cut"),
                    Query(a_minute("offhook_events_total", name="barge_in_released"), "went on"),
                ],
            ),
        ],
    )


def engines() -> Row:
    busy, slots = rate("offhook_lane_busy_seconds_total"), series("offhook_lane_slots")
    return Row(
        "Why: engines and load",
        [
            Panel(
                "Overload",
                "What does it give up so that calls that are up stay well?",
                [Query(f"max by (instance) ({series('offhook_engine_overload')})", "{{instance}}")],
                kind="state-timeline",
                mappings=LADDER,
            ),
            Panel(
                "Load, as a share of what refuses calls",
                "Which measure is next to refuse calls? At 100 % it does.",
                [Query(f"max by (measure) ({series('offhook_admission_load_ratio')})", "{{measure}}")],
                unit="percentunit",
            ),
            Panel(
                "Lanes in use",
                "Which cores, or which device, are full?",
                [Query(share(busy, slots, LANE), "{{host}}/{{lane}}")],
                unit="percentunit",
                most=1,
            ),
            Panel(
                "How long the oldest job waits",
                "Who is kept waiting?",
                [Query(f"max by ({LANE}) ({series('offhook_lane_queue_age_seconds')})", "{{host}}/{{lane}}")],
                unit="s",
            ),
            Panel(
                "Jobs that wait, and that run",
                "How much stands before the next caller's words?",
                [
                    Query(total(series("offhook_lane_waiting_jobs"), LANE), "{{host}}/{{lane}} wait"),
                    Query(total(series("offhook_lane_running_jobs"), LANE), "{{host}}/{{lane}} run"),
                    Query(total(series("offhook_host_waiting_jobs"), "host"), "{{host}} without an answer"),
                ],
            ),
            Panel(
                "Engine hosts",
                "Is one down?",
                [Query(f"min by (instance, host) ({series('offhook_host_up')})", "{{instance}} {{host}}")],
                kind="state-timeline",
                mappings=YES_NO,
            ),
            Panel(
                "Restarts of hosts, and requests that backends failed",
                "Does something crash, or does a stand-in serve?",
                [
                    Query(grown("offhook_host_restarts_total", "host"), "{{host}} restarted"),
                    Query(grown("offhook_backend_failures_total", "stage, backend"), "{{stage}}: {{backend}} failed"),
                ],
            ),
            Panel(
                "Event loop, how late",
                "Is the gateway's own process too busy?",
                [
                    Query(quantile(0.99, "offhook_loop_lag_seconds"), "p99"),
                    Query(f"max by (instance) ({series('offhook_loop_lag_worst_seconds')})", "{{instance}} worst"),
                ],
                unit="s",
            ),
            Panel(
                "Tokens, a second",
                "How much does the language model read and write? Prompt less prefilled is what its cache spared.",
                [Query(total(rate("offhook_tokens_total"), "kind"), "{{kind}}")],
            ),
        ],
    )


def machine() -> Row:
    memory, live = series("process_resident_memory_bytes"), series("offhook_calls_live")
    return Row(
        "Why: the machine",
        [
            Panel(
                "Cores in use",
                "Is the gateway's one core full? Engine hosts are processes of their own.",
                [
                    Query(total(rate("process_cpu_seconds_total"), "instance"), "{{instance}} gateway"),
                    Query(total(rate("offhook_host_cpu_seconds_total"), "instance, host"), "{{instance}} {{host}}"),
                ],
            ),
            Panel(
                "Memory",
                "Does it grow?",
                [
                    Query(total(memory, "instance"), "{{instance}} gateway"),
                    Query(total(series("offhook_host_memory_bytes"), "instance, host"), "{{instance}} {{host}}"),
                    Query(total(series("offhook_host_device_bytes"), "instance, host"), "{{instance}} {{host}} device"),
                ],
                unit="bytes",
            ),
            Panel(
                "Memory a call",
                "What does a call cost? All of the gateway's, over the calls that are up.",
                [Query(f"{total(memory, 'instance')} / ({total(live, 'instance')} > 0)", "{{instance}}")],
                unit="bytes",
            ),
            Panel(
                "Files and sockets, of those allowed",
                "Does it run out of them?",
                [Query(share(series("process_open_fds"), series("process_max_fds"), "instance"), "{{instance}}")],
                unit="percentunit",
            ),
            Panel(
                "Tasks and threads",
                "Is something left behind? They go back to base when calls do.",
                [
                    Query(total(series("offhook_tasks"), "instance"), "{{instance}} tasks"),
                    Query(total(series("process_threads"), "instance"), "{{instance}} threads"),
                ],
            ),
            Panel(
                "Up for",
                "Did it start again?",
                [Query(f"time() - max by (instance) ({series('process_start_time_seconds')})", "{{instance}}")],
                unit="s",
            ),
        ],
    )


def what_else() -> Row:
    events = total(rate("offhook_events_total"), "name")
    labels = "instance, version, preset, vad, stt, llm, tts, fake"
    return Row(
        "What else is counted",
        [
            Panel(
                "Events, a minute",
                "What was dropped, came late, or was decided? docs/operations.md says what each name means.",
                [Query(f"topk(15, 60 * {events})", "{{name}}")],
                width=12,
            ),
            Panel(
                "What runs where",
                "Which version, with which engines?",
                [Query(f"max by ({labels}) ({series('offhook_info')})")],
                kind="table",
                width=12,
            ),
            Panel(
                "Strangers, a minute",
                "Who knocks? Signatures, tickets and rates that were refused.",
                [Query(a_minute("offhook_events_total", "name", name=STRANGERS), "{{name}}")],
                width=12,
            ),
            Panel(
                "Traces, a minute",
                "Do they reach the collector?",
                [Query(a_minute("offhook_events_total", "name", name="~trace_.+"), "{{name}}")],
                width=12,
            ),
        ],
    )
