"""``offhook bench``: what the parts cost and how they scale, for people and for programs."""

from __future__ import annotations

import enum
import json
from dataclasses import asdict
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any

import typer


class CostsName(enum.StrEnum):
    cpu = "cpu"
    h200 = "h200"
    h200_library = "h200-library"
    mac = "mac"


class ShapeName(enum.StrEnum):
    tiny = "tiny"
    llama_3b = "3b"


def add_bench_commands(app: typer.Typer) -> typer.Typer:
    """Add ``bench`` to a command line; returns it, for more commands."""
    bench = typer.Typer(help="Benchmarks.", no_args_is_help=True)
    bench.command("scheduler")(scheduler)
    bench.command("gpu")(gpu)
    bench.command("tts-readback")(tts_readback)
    app.add_typer(bench, name="bench")
    return bench


def scheduler(
    costs: Annotated[CostsName, typer.Option(help="Whose costs: measured ones, and for mac published ones.")] = (
        CostsName.h200
    ),
    calls: Annotated[int | None, typer.Option(help="So many calls, instead of looking for the most.", min=1)] = None,
    seconds: Annotated[float, typer.Option(help="Simulated length of every call.", min=60.0)] = 600.0,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object instead of a table.")] = False,
    check: Annotated[
        int | None, typer.Option(help="Instead: check the policy's properties over so many random runs.", min=1)
    ] = None,
) -> None:
    """How many calls each policy serves: earliest deadline first, first in first out, a global lock. Simulated."""
    from engines.bench import scheduler as bench

    if check is not None:
        broken = bench.check(check)
        for seed, problem in broken:
            typer.echo(f"run {seed}: {problem}", err=True)
        typer.echo(f"{check} random runs, {len(broken)} broke a property")
        if broken:
            raise typer.Exit(1)
        return
    results = bench.compare(costs.value, calls=calls, seconds=seconds)
    if as_json:
        typer.echo(json.dumps({name: _fields(result) for name, result in results.items()}, indent=2))
    else:
        bench.show(costs.value, results)


def gpu(
    shape: Annotated[ShapeName, typer.Option(help="Sizes of the models: 3b for a GPU, tiny for a CPU.")] = (
        ShapeName.llama_3b
    ),
    calls: Annotated[
        str, typer.Option(help="Calls at once, level by level, separated by commas.")
    ] = "8,16,24,32,48,64",
    policies: Annotated[str, typer.Option(help="Of edf, fifo and lock.")] = "edf,fifo,lock",
    seconds: Annotated[float, typer.Option(help="Length of each level.", min=1.0)] = 30.0,
    seed: Annotated[int, typer.Option(help="Of the trace of turns, which is the same for every policy.")] = 1,
    phonemes: Annotated[str, typer.Option(help="Of a turn's two segments of speech.")] = "45,105",
    within: Annotated[float | None, typer.Option(help="Seconds that all of it may take.")] = None,
    every_level: Annotated[
        bool, typer.Option("--every-level", help="Climb on where too many calls fail, instead of giving up.")
    ] = False,
    neighbour: Annotated[
        bool, typer.Option("--neighbour/--no-neighbour", help="Measure what a long reply costs other calls, too.")
    ] = True,
    json_file: Annotated[Path | None, typer.Option("--json", help="A file, written after every level.")] = None,
    profile: Annotated[bool, typer.Option("--profile", help="Where the thread's time goes, by kind.")] = False,
) -> None:
    """The executor against first in first out and a global lock, on the real thread with models of random weights."""
    from engines.api import EngineError
    from engines.bench import gpu as bench
    from engines.bench.watched import POLICIES

    spoken = _numbers(phonemes, "--phonemes")
    if len(spoken) != 2:
        raise typer.BadParameter("two numbers, such as 45,105", param_hint="--phonemes")
    try:
        chosen = bench.names(policies)
    except ValueError as error:
        raise typer.BadParameter(f"{error}; there are: {', '.join(POLICIES)}", param_hint="--policies") from error
    options = bench.Options(
        shape.value,
        _numbers(calls, "--calls"),
        chosen,
        seconds,
        seed,
        (spoken[0], spoken[1]),
        within,
        neighbour,
        every_level=every_level,
    )
    missing = [package for package in ("mlx", "mlx_lm", "mlx_whisper", "mlx_audio") if find_spec(package) is None]
    if missing:
        how = "make .venv/.installed-speech-mlx, or -cuda for an NVIDIA GPU"
        typer.echo(f"error (missing_extra): this needs {', '.join(missing)}: {how}", err=True)
        raise typer.Exit(1)
    try:
        bench.run(options, json_file, profile=profile)
    except EngineError as error:
        typer.echo(f"error ({error.code}): {error}", err=True)
        raise typer.Exit(1) from None


def tts_readback(
    tts: Annotated[
        list[str] | None, typer.Option(help="BACKEND[=MODEL][,voice=NAME][,OPTION=JSON]; again for more.")
    ] = None,
    stt: Annotated[str, typer.Option(help="The backend that reads back.")] = "faster-whisper-base",
    sentences: Annotated[int | None, typer.Option(help="Only the first so many.", min=1)] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object instead of a table.")] = False,
) -> None:
    """Speech of each text-to-speech variant, read back by speech-to-text: errors, speed and memory side by side."""
    from engines.api import EngineError
    from engines.bench import readback

    try:
        failed = readback.run(tts or list(readback.DEFAULT), stt, sentences, as_json=as_json)
    except (EngineError, ValueError) as error:
        raise typer.BadParameter(str(error)) from error
    if failed:
        raise typer.Exit(1)


def _numbers(text: str, option: str) -> tuple[int, ...]:
    try:
        return tuple(int(number) for number in text.split(","))
    except ValueError:
        raise typer.BadParameter(f"whole numbers separated by commas, not {text!r}", param_hint=option) from None


def _fields(result: Any) -> dict[str, Any]:
    fields = asdict(result)
    return {"max_calls": fields["calls"] if result.passed else 0} | fields
