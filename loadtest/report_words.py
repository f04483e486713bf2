"""The words of the HTML report: what verdicts, fates and faults are called there, and what its numbers mean.

The definitions are those of ``docs/loadtest/report.md`` in short.
"""

from __future__ import annotations

from loadtest.markup import Markup, words
from loadtest.outcome import Fate, Fault
from loadtest.run_report import Verdict

VERDICTS = {
    Verdict.GOOD: ("Good", "ok"),
    Verdict.NOT_GOOD: ("Not good enough", "bad"),
    Verdict.VOID: ("Void", "warn"),
    Verdict.INTERRUPTED: ("Interrupted", "warn"),
}

FATES = {
    Fate.COMPLETED: "completed",
    Fate.REFUSED: "refused",
    Fate.FAILED: "failed to come about",
    Fate.DROPPED: "dropped",
    Fate.ABANDONED: "cut short by the load test",
    Fate.LEFT: "left by the caller",
}

FAULTS = {
    Fault.NO_ANSWER: ("No answer", "The caller spoke, and the agent was not heard to answer."),
    Fault.SLOW_ANSWER: ("Slow answer", "An answer came later than the scenario allows."),
    Fault.CUT_IN: ("Cut in", "The agent began to talk into the caller’s line."),
    Fault.SLOW_STOP: ("Slow stop", "Interrupted, the agent went on for longer than the scenario allows."),
    Fault.TALKED_ON: ("Talked on", "Interrupted, the agent fell silent, and then said more of what had been cut."),
    Fault.FALSE_STOP: ("False stop", "The agent broke off though nobody had interrupted it."),
    Fault.LATE_FRAMES: (
        "Late frames",
        "More of the agent’s sound came too late to be played than the scenario allows.",
    ),
    Fault.LOST_FRAMES: ("Lost frames", "More of the agent’s sound never came than the scenario allows."),
    Fault.FOREIGN_CODE: ("Cross-talk", "The caller heard another caller’s code word."),
    Fault.LOST_CODE: ("Lost code word", "The caller’s own code word did not come back."),
    Fault.DAMAGED: ("Damaged sound", "A code word came back with parts missing, or mixed with another."),
    Fault.DROPPED: ("Dropped", "The call was up, and ended before its script was over."),
    Fault.REFUSED: ("Refused", "The server took no more calls, which the scenario does not want."),
    Fault.SLOW_REFUSAL: ("Slow refusal", "The caller waited too long to be told that there was no room."),
    Fault.FAILED: ("Failed", "The call never came about, and nobody said no."),
    Fault.SLOW_SETUP: ("Slow set-up", "The call was up later than the scenario allows."),
    Fault.AGENT_STAYED: ("Agent stayed", "The agent should have ended the call, and did not."),
    Fault.OVERSTAYED: ("Overstayed", "The script was not over at the call’s time limit."),
    Fault.GARBLED: ("Garbled", "The server said what its wire does not allow."),
}

IF_LATE = "stop what else runs on the machine that calls, or leave the callers a core of their own (--pin)"
"""What to do about a run that is void because it was late itself."""

_KINDS = {
    "say": "Says",
    "press": "Presses",
    "interrupt": "Interrupts",
    "backchannel": "Backchannel",
}

DEFINITIONS: tuple[tuple[str, str, str], ...] = (
    (
        "good",
        "Good call",
        "One without a fault: it came about, was answered, stopped for, and sounded as the scenario wants.",
    ),
    (
        "goodput",
        "Goodput",
        "Good calls over offered calls: one that was refused or failed counts against it. Calls that the load test cut "
        "short itself are left out. 99 % are wanted.",
    ),
    (
        "voice-to-voice",
        "Voice to voice",
        "From the caller’s last voiced sample to the first of the agent’s answer, in the recording, at the caller’s "
        "ear: behind the network and the buffer that a phone or browser plays from.",
    ),
    (
        "stop",
        "Stop",
        "From the onset of the caller’s interruption to the agent’s last voiced sample before 200 ms of silence.",
    ),
    ("talked-on", "Talked on", "What the agent said, after it first fell silent, of the reply that had been cut."),
    ("setup", "Set-up", "From the first attempt to connect until the call was up; of refused calls, until the no."),
    (
        "late",
        "Late frames",
        "Slots of 20 ms in which the agent was to be heard, and its sound was not there yet, over all such slots. "
        "Packets that were lost one by one and concealed are counted as lost, not as late.",
    ),
    ("gaps", "Gaps", "Times that nothing came for more than 60 ms in the middle of speech, with nothing queued."),
    (
        "cross-talk",
        "Cross-talk",
        "Each caller says a code word of its own and must hear no other. A foreign word means that two calls’ sound "
        "was mixed up.",
    ),
    (
        "false-barge-in",
        "False barge-ins",
        "Replies that the agent broke off though nobody interrupted it (noise, echo, a backchannel), over all replies.",
    ),
    (
        "selectivity",
        "Selectivity",
        "Of the backchannels (“mhm”) spoken into a reply: the share at which the agent went on.",
    ),
    (
        "turn-taking",
        "Turn-taking",
        "How well the agent’s answers are timed, 0 to 1, by the curve of ServiceNow’s EVA: best from 0.5 to 2 s, "
        "nothing from 3.5 s on, and nothing for talking half a second into the caller. The mean over turns.",
    ),
    (
        "mos",
        "Estimated MOS",
        "What listeners would say of the sound, 1 to 4.5, computed from codec, loss and delay by the E-model (ITU-T "
        "G.107). An estimate; nobody was asked.",
    ),
    (
        "stages",
        "Stages",
        "The server’s own times of a turn, from its metrics: after the caller’s last voiced sample as the server heard "
        "it, interpolated within the buckets of its histograms.",
    ),
    (
        "lateness",
        "Lateness",
        "How late a frame left against its own deadline. Above 5 ms at the 99th percentile the load test itself was "
        "too late to judge anybody, and the run is void.",
    ),
    ("knee", "Capacity", "The most calls at once with a goodput of at least 99 % and less than 0.1 % of late frames."),
    (
        "percentile",
        "p50, p95, p99",
        "Nearest rank over the values themselves: at p95, 95 of 100 were no longer. No percentile is a mean of others.",
    ),
    ("slope", "Slope", "A straight line by least squares through what was read while all calls were up, per hour."),
)
"""(anchor, name, meaning)."""


def fault_words(fault: str) -> tuple[str, str]:
    """Its name and meaning; one that is not known is told as it is."""
    return FAULTS[Fault(fault)] if fault in FAULTS else (fault.replace("_", " ")[:60], "")


def kind_words(kind: str) -> Markup | str:
    return _KINDS.get(kind) or words(kind)
