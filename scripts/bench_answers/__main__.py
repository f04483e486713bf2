"""``python -m scripts.bench_answers``: how near each runtime of SmolLM2 comes to the weights that were published."""

from __future__ import annotations

import argparse
import asyncio
import sys
import time
from functools import partial

from engines import fetch
from engines.executor.thread import MlxExecutor
from engines.llm.convert import SmolLm2Source
from scripts.bench_answers.reference import Llama
from scripts.bench_answers.runtimes import RUNTIMES, chat_of, folder_of
from scripts.bench_answers.scores import Floats, Passage, dialogues, passage, read, score
from scripts.call_cost.machine import machine_line

MLX = "smollm2-mlx"


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m scripts.bench_answers", description=__doc__)
    parser.add_argument("--runtimes", default="smollm2-onnx,smollm2-ctranslate2", help=f"of {','.join(RUNTIMES)}")
    parser.add_argument("--dialogues", type=int, help="only the first so many")
    options = parser.parse_args()
    names = options.runtimes.split(",")
    if unknown := [name for name in names if name not in RUNTIMES]:
        parser.error(f"no runtime {', '.join(unknown)}; there are {', '.join(RUNTIMES)}")
    with fetch.console_progress() as progress:
        source = SmolLm2Source.open(fetch.ensure("smollm2-gguf", progress))
    chat = chat_of(folder_of("smollm2-onnx"))
    passages = [passage(chat, one) for one in dialogues()[: options.dialogues]]
    reference = read(Llama(source), passages)
    print(f"{machine_line()}\n\n| runtime | tokens | perplexity | worse by, nats | same first | KL | KL at most | s |")
    print("|---|---|---|---|---|---|---|---|")
    _show("reference, float32", passages, reference, reference, None)
    for name in names:
        began = time.monotonic()
        found = asyncio.run(_on_mlx(source, passages)) if name == MLX else _read(name, source, passages)
        _show(name, passages, reference, found, time.monotonic() - began)
    return 0


def _read(name: str, source: SmolLm2Source, passages: list[Passage]) -> list[Floats]:
    return read(RUNTIMES[name](folder_of(name), source), passages)


async def _on_mlx(source: SmolLm2Source, passages: list[Passage]) -> list[Floats]:
    executor = MlxExecutor()
    await executor.start()
    try:
        return await executor.run(partial(_read, MLX, source, passages))
    finally:
        await executor.close()


def _show(
    name: str, passages: list[Passage], reference: list[Floats], found: list[Floats], seconds: float | None
) -> None:
    its = score(passages, reference, found)
    worse = f"{its.worse:+.4f} ± {its.worse_error:.4f}"
    took = "" if seconds is None else f"{seconds:.0f}"
    print(
        f"| {name} | {its.tokens} | {its.perplexity:.3f} | {worse} | {its.same_first:.1%} | {abs(its.kl):.5f} "
        f"| {its.kl_most:.3f} | {took} |",
        flush=True,
    )


if __name__ == "__main__":
    sys.exit(main())
