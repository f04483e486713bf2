"""What one call's long reply costs another call: ``python -m engines.bench.neighbour``.

B asks for a short reply alone, then again while A's reply of 500 tokens is being generated, then beside several such.
Reported are B's time to the first token and to the last, and how much longer they became.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import sys
from typing import Any

from engines.bench.random_llama import SHAPES
from engines.bench.turns import Reply, Talk, talking
from streaming.jobs import Message

_LONG, _SHORT = 500, 40
_PROMPT_WORDS = 30


async def neighbour(shape: str, others: list[int], repeats: int) -> dict[str, Any]:
    """B's medians by the number of long replies beside it."""
    async with talking(shape) as (executor, talk):
        rows = await beside(talk, others, repeats)
        longest = {name: round(kind.longest_s * 1e3, 1) for name, kind in executor.snapshot.quanta.items()}
    return {"shape": shape, "tokens": _SHORT, "rows": rows, "longest_quanta_ms": longest}


async def beside(talk: Talk, others: list[int], repeats: int) -> list[dict[str, Any]]:
    """The rows of :func:`neighbour`, alone first, on a model that runs."""
    rows: list[dict[str, Any]] = []
    for count in [0, *others]:
        firsts, totals = [], []
        for repeat in range(repeats):
            first, total = await _measured(talk, count, f"{count}-{repeat}")
            firsts.append(first)
            totals.append(total)
        rows.append(
            {
                "long_replies_beside": count,
                "first_token_ms": round(statistics.median(firsts) * 1e3, 1),
                "reply_ms": round(statistics.median(totals) * 1e3, 1),
            }
        )
    for row in rows:
        row["slowdown"] = round(row["reply_ms"] / rows[0]["reply_ms"], 2)
    return rows


async def _measured(talk: Talk, others: int, name: str) -> tuple[float, float]:
    """Seconds to B's first token and to its last."""
    asked = [talk.ask(f"a{name}-{n}", [_said(talk)], _LONG) for n in range(others)]
    for _, reply in asked:
        await reply.tokens(5)
    epoch, reply = talk.ask(f"b{name}", [_said(talk)], _SHORT)
    await reply.end()
    result = _seconds(reply)
    for n, (epoch, _) in enumerate(asked):
        talk.model.cancel(f"a{name}-{n}", epoch)
        talk.model.forget(f"a{name}-{n}")
    talk.model.forget(f"b{name}")
    await asyncio.sleep(0.05)
    return result


def _said(talk: Talk) -> Message:
    return Message("user", talk.words(_PROMPT_WORDS))


def _seconds(reply: Reply) -> tuple[float, float]:
    return reply.times[0] - reply.asked, reply.times[-1] - reply.asked


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--shape", choices=sorted(SHAPES), default="tiny")
    parser.add_argument("--others", default="1,4,16", help="long replies beside B, separated by commas")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--json", action="store_true", help="as one line")
    arguments = parser.parse_args()
    others = [int(count) for count in arguments.others.split(",")]
    result = asyncio.run(neighbour(arguments.shape, others, arguments.repeats))
    sys.stdout.write(json.dumps(result, indent=None if arguments.json else 1) + "\n")


if __name__ == "__main__":
    main()
