"""What must hold of the policy whatever comes: checked over random runs, from a seed each, in virtual time.

Used by the tests and by ``offhook bench scheduler --check N``. The checks look inside the agenda, for the order that it
takes deadlines in; what they compute from it they compute anew.
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence

from engines.executor.costs import Costs
from engines.executor.demand import Job
from engines.executor.policy import LATEST_S, OVERTAKEN_S, Agenda, Choice, Key, Kind
from streaming.jobs import Priority

_KINDS = (
    Kind("stt", "encode"),
    Kind("stt", "transcribe", max_batch=4),
    Kind("llm", "start", opens_stream=True),
    Kind("llm", "prefill", max_batch=4, max_units=256),
    Kind("llm", "decode", max_batch=8),
    Kind("tts", "speak", max_batch=3, alike=True),
    Kind("codec", "chunk", pool="voices"),
    Kind("codec2", "chunk", max_batch=2, pool="voices"),
)
_LIVE = tuple(priority for priority in Priority if priority is not Priority.SPECULATIVE)
_EPSILON = 1e-6
_QUANTUM_S = 0.1


def broken_property(seed: int) -> str | None:
    """One random run of each check; what did not hold, or None."""
    for check in CHECKS:
        problem = check(random.Random(f"{check.__name__} {seed}"))
        if problem is not None:
            return f"{check.__name__[1:]}: {problem}"
    return None


def _random_costs(chance: random.Random, kinds: Sequence[Kind]) -> Costs:
    costs = Costs()
    for kind in kinds:
        alone_s = chance.uniform(0.002, 0.1)
        member_s = alone_s * chance.choice((0.0, 0.1, 0.5, 1.0))
        for batch in (1, 2, 4, 8):
            for length in (1, 64, 256):
                costs.seed(kind, batch, length, alone_s * (1 + length / 256) + (batch - 1) * member_s)
    return costs


# --- anything goes ------------------------------------------------------------------------------------------------


def _lives(chance: random.Random) -> str | None:
    """Jobs come, go on, are moved and dropped between quanta: nothing is served that should not be."""
    agenda = Agenda(_random_costs(chance, _KINDS), max_jobs=chance.choice((8, 64)))
    pool = chance.randint(1, 3)
    agenda.set_pool("voices", pool)
    alive: set[Key] = set()
    now = 0.0
    for number in range(40):
        for _ in range(chance.randrange(3)):
            kind, key = chance.choice(_KINDS), Key("", str(number), chance.randrange(1 << 30))
            key = Key(kind.owner, key.call, key.epoch)
            agenda.add(
                key, kind, chance.choice(tuple(Priority)), now + chance.uniform(-0.5, 2.0), now, **_shape(chance)
            )
            alive.add(key)
        alive -= {key for key, _ in agenda.take_evicted()}
        if alive and chance.random() < 0.3:
            key = chance.choice(sorted(alive, key=repr))
            if chance.random() < 0.5:
                agenda.drop(key)
                alive.discard(key)
            else:
                agenda.move(key, now, priority=chance.choice(tuple(Priority)), deadline=now + chance.uniform(0, 2))
        hold = chance.random() < 0.2
        agenda._renew(now)
        order = agenda._in_order()
        able = {job.key for job in order if agenda._may_run(job, hold)}
        urgent = {job.key: job.due for job in order}
        waited_for = any(job.due < math.inf and not agenda._may_run(job, hold) for job in order)
        demands = _demands(agenda, order, now)
        units = {job.key: job.units for job in order}
        choice = agenda.choose(now, hold_streams=hold)
        if len(agenda) != len(alive):
            return "the agenda holds other jobs than were given to it"
        if choice is None:
            if able:
                return "nothing was chosen though a job could run"
            now += 0.05
            continue
        problem = (
            _wrong_members(choice, alive, able, units)
            or _speculated(choice, able, urgent, waited_for)
            or _hurt(agenda, choice, order, demands)
        )
        if problem is None and agenda.held()["voices"] > pool:
            problem = "more jobs hold the pool than it has"
        if problem is not None:
            return problem
        now += agenda.costs.estimate(choice.kind, len(choice.keys), choice.length)
        for key in choice.keys:
            if chance.random() < 0.4:
                agenda.drop(key)
                alive.discard(key)
            elif chance.random() < 0.5 and choice.kind.pool is None:
                kind = chance.choice([kind for kind in _KINDS if kind.owner == key.owner])
                agenda.advance(key, kind, **_shape(chance))
    return None


def _shape(chance: random.Random) -> dict[str, int]:
    return {
        "units": chance.choice((1, 40, 200)),
        "bucket": chance.choice((64, 256)),
        "remaining": chance.choice((1, 1, 5)),
    }


def _wrong_members(choice: Choice, alive: set[Key], able: set[Key], units: dict[Key, int]) -> str | None:
    kind = choice.kind
    if not set(choice.keys) <= alive:
        return "a quantum for a dead job"
    if not set(choice.keys) <= able:
        return "a quantum for a job that is held back"
    if len(set(choice.keys)) != len(choice.keys) or len(choice.keys) > kind.max_batch:
        return "a quantum with too many jobs"
    if kind.max_units is not None and len(choice.keys) > 1 and sum(units[key] for key in choice.keys) > kind.max_units:
        return "a quantum with too many units"
    return None


def _speculated(choice: Choice, able: set[Key], due: dict[Key, float], waited_for: bool) -> str | None:
    if due[choice.keys[0]] < math.inf or not any(due[key] < math.inf for key in able):
        return None
    # It may hold what a live job waits for.
    return None if waited_for and choice.kind.pool is not None else "speculation ran while live work could"


def _demands(agenda: Agenda, order: Sequence[Job], now: float) -> dict[Key, float]:
    """When each live job is done if all run in order of deadline, as the demand test counts."""
    done: dict[Key, float] = {}
    live = [job for job in order if job.due < math.inf]
    for place, job in enumerate(live):
        by_group: dict[int, list[Job]] = {}
        for other in live[: place + 1]:
            by_group.setdefault(id(other.group), []).append(other)
        done[job.key] = now + sum(_need(agenda.costs, jobs) for jobs in by_group.values())
    return done


def _need(costs: Costs, jobs: Sequence[Job]) -> float:
    """The most that any beginning of the list needs: who comes later takes nothing off what is needed."""
    return max(_need_of(costs, jobs[:count]) for count in range(1, len(jobs) + 1))


def _need_of(costs: Costs, jobs: Sequence[Job]) -> float:
    kind = jobs[0].group.kind
    if kind.max_units is not None:
        return costs.estimate(kind, min(len(jobs), kind.max_batch), sum(job.units * job.remaining for job in jobs))
    rounds = [jobs[at : at + kind.max_batch] for at in range(0, len(jobs), kind.max_batch)]
    quanta = sum(max(job.remaining for job in one) for one in rounds)
    return quanta * costs.estimate(kind, min(len(jobs), kind.max_batch), max(job.length for job in jobs))


def _hurt(agenda: Agenda, choice: Choice, order: Sequence[Job], done: dict[Key, float]) -> str | None:
    """Whether riders made late what was due before them and was in time. Only where the head is the first of all: a
    head that was let by was tested by another rule."""
    if choice.keys[0] != order[0].key:
        return None
    members: list[Job] = []
    chosen = set(choice.keys)
    whole_s = agenda.costs.estimate(choice.kind, len(chosen), _joint(choice, [j for j in order if j.key in chosen]))
    for job in order:
        if job.key in chosen:
            members.append(job)
        if job.due == math.inf:
            break
        extra_s = whole_s - agenda.costs.estimate(choice.kind, len(members), _joint(choice, members))
        if done[job.key] <= job.due < done[job.key] + extra_s - _EPSILON:
            return "a rider made an earlier job late"
    return None


def _joint(choice: Choice, jobs: Sequence[Job]) -> int:
    lengths = [job.length for job in jobs]
    return sum(lengths) if choice.kind.max_units is not None else max(lengths)


# --- nothing that could be in time is late ------------------------------------------------------------------------


def _feasible_sets(chance: random.Random) -> str | None:
    """Jobs all there at the start, that pass the demand test with every batch at its full width: none misses."""
    kinds = [kind for kind in _KINDS if kind.pool is None and kind.max_units is None]
    agenda = Agenda(_random_costs(chance, kinds))
    jobs: list[tuple[Key, Kind, int]] = []
    for number in range(chance.randint(1, 12)):
        kind = chance.choice(kinds)
        jobs.append((Key(kind.owner, "c", number), kind, chance.choice((1, 1, 2, 6))))
    members = {kind: min(kind.max_batch, sum(one[1] is kind for one in jobs)) for kind in kinds}
    need: dict[Kind, list[int]] = {}
    due: dict[Key, float] = {}
    slack = chance.choice((1.0, 1.0, 1.2))
    for key, kind, remaining in jobs:
        need.setdefault(kind, []).append(remaining)
        total_s = 0.0
        for other, rest in need.items():
            rounds = sum(max(rest[at : at + other.max_batch]) for at in range(0, len(rest), other.max_batch))
            total_s += rounds * max(agenda.costs.estimate(other, batch) for batch in range(1, members[other] + 1))
        due[key] = total_s * slack + _EPSILON
        if due[key] > LATEST_S[Priority.PLAYOUT]:
            break
        agenda.add(key, kind, Priority.PLAYOUT, due[key], 0.0, remaining=remaining)
    return _run_dry(agenda, due, {key: remaining for key, _, remaining in jobs})


def _run_dry(agenda: Agenda, due: dict[Key, float], remaining: dict[Key, int]) -> str | None:
    now = 0.0
    while (choice := agenda.choose(now)) is not None:
        now += agenda.costs.estimate(choice.kind, len(choice.keys), choice.length)
        for key in choice.keys:
            remaining[key] -= 1
            if not remaining[key]:
                agenda.drop(key)
                if now > due[key] + _EPSILON * 100:
                    return f"a job of a feasible set was {now - due[key]:.4f} s late"
    return None


def _arrivals(chance: random.Random) -> str | None:
    """Jobs that come at any time and pass the processor demand criterion with a blocking term of the longest quantum:
    none misses."""
    kinds = [Kind(f"m{number}", "encode") for number in range(4)]
    costs = _random_costs(chance, kinds)
    seconds = {kind: costs.estimate(kind) for kind in kinds}
    jobs = []
    for number in range(chance.randint(1, 10)):
        kind, at = chance.choice(kinds), chance.uniform(0.0, 0.5)
        jobs.append((at, at + seconds[kind] + chance.uniform(0.0, 1.0), kind, Key(kind.owner, "c", number)))
    blocking_s = max(seconds[kind] for _, _, kind, _ in jobs)
    for start in {at for at, _, _, _ in jobs}:
        for end in {due for _, due, _, _ in jobs}:
            need_s = sum(seconds[kind] for at, due, kind, _ in jobs if at >= start and due <= end)
            if need_s and need_s + blocking_s > end - start:
                return None  # this set is not promised anything
    agenda, now = Agenda(costs), 0.0
    waiting = sorted(jobs, key=lambda job: job[0])
    dues = {key: due for _, due, _, key in jobs}
    while waiting or len(agenda):
        while waiting and waiting[0][0] <= now:
            _, due, kind, key = waiting.pop(0)
            agenda.add(key, kind, Priority.PLAYOUT, due, now)
        choice = agenda.choose(now)
        if choice is None:
            now = waiting[0][0]
            continue
        now += seconds[choice.kind]
        agenda.drop(choice.keys[0])
        if now > dues[choice.keys[0]] + _EPSILON:
            return "a job of a feasible set was late"
    return None


def _starvation(chance: random.Random) -> str | None:
    """Every quantum brings a newcomer that is due at once: a live job without a deadline of its own is served soon
    after its class's latest time."""
    kinds = [kind for kind in _KINDS if kind.pool is None]
    agenda = Agenda(_random_costs(chance, kinds) if chance.random() < 0.5 else None)
    kind = chance.choice((*kinds, Kind("alone", "chunk", max_batch=2)))  # nothing could take the last one along
    waiting = Key(kind.owner, "waits", 0)
    priority = chance.choice(_LIVE)
    agenda.add(waiting, kind, priority, math.inf, 0.0)
    latest = LATEST_S[priority] + OVERTAKEN_S + 4 * _QUANTUM_S
    now = 0.0
    number = 0
    while now <= latest:
        kind = chance.choice(kinds)
        number += 1
        agenda.add(Key(kind.owner, "c", number), kind, chance.choice(tuple(Priority)), now, now)
        choice = agenda.choose(now)
        assert choice is not None
        if waiting in choice.keys:
            return None
        for key in choice.keys:
            agenda.drop(key)
        now += _QUANTUM_S
    return f"a live job of class {priority.name} was not served for {latest:.1f} s"


CHECKS = (_lives, _feasible_sets, _arrivals, _starvation)
