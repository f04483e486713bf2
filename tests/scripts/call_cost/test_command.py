from __future__ import annotations

from scripts.call_cost.bench import Plan
from scripts.call_cost.command import parser_of, plan_of

USUAL = Plan(calls=(50, 100), climb=(60, 480))
QUICK = Plan(calls=(20,), rounds=1)


def planned(*words: str) -> Plan:
    return plan_of(parser_of("bench", None).parse_args(words), USUAL, QUICK)


def test_what_is_given_wins_over_what_is_usual() -> None:
    assert planned() == USUAL
    assert planned("--quick") == QUICK
    assert planned("--calls", "5,10", "--rounds", "2") == Plan(calls=(5, 10), rounds=2, climb=(60, 480))
    assert planned("--quick", "--climb", "10,20").climb == (10, 20)
    assert planned("--no-climb").climb is None
