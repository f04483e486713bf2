"""``offhook models``: what there is, in which state, and fetching it."""

from __future__ import annotations

import dataclasses
import json
from typing import Annotated, Any

import typer


def add_models_commands(app: typer.Typer) -> None:
    models = typer.Typer(help="The models.", no_args_is_help=True)
    models.command("list")(list_models)
    models.command("fetch")(fetch_models)
    app.add_typer(models, name="models")


def list_models(as_json: Annotated[bool, typer.Option("--json", help="One JSON array.")] = False) -> None:
    """List every model: state, size, memory it needs, what pins it, its licence, which backends use it."""
    from engines.fetch import cache_folder

    rows = table()
    if as_json:
        typer.echo(json.dumps(rows, indent=2))
        return
    widths = {name: max(len(row[name]) for row in map(_texts, rows)) for name in ("name", "state", "size", "memory")}
    for row in map(_texts, rows):
        start = "  ".join(row[name].ljust(width) for name, width in widths.items())
        typer.echo(f"{start}  {row['pinned']}; {row['licence']}; {row['backends']}")
    typer.echo(f"They are kept under {cache_folder()} (OFFHOOK_CACHE); `models fetch NAME` prints a model's folder.")


def fetch_models(
    names: Annotated[
        list[str] | None, typer.Argument(help="Models, backends (models list has both), or owner/name[@revision].")
    ] = None,
    preset: Annotated[str | None, typer.Option(help="All that a preset needs, what stands in included.")] = None,
) -> None:
    """Fetch what is not here, with progress, and print each folder."""
    from engines import fetch
    from engines.api import EngineError
    from engines.weights import ensure

    try:
        wanted = _wanted(names or [], preset)
        if not wanted:
            typer.echo("error: name models, or a --preset", err=True)
            raise typer.Exit(2)
        for weights in wanted:
            with fetch.console_progress() as progress:
                folder = ensure(weights, progress)
            typer.echo(str(folder))
    except EngineError as error:
        typer.echo(f"error ({error.code}): {error}", err=True)
        raise typer.Exit(2 if error.code in ("unknown_model", "unknown_preset") else 1) from None


def table() -> list[dict[str, Any]]:
    """Every model that a backend uses, and the pinned ones of hubs."""
    from engines.registry import BACKENDS, weights_name
    from engines.weights import report

    used: dict[Any, list[Any]] = {}
    for spec in BACKENDS.values():
        for weights in spec.weights:
            used.setdefault(weights, []).append(spec)
    rows = []
    for weights, specs in used.items():
        told = dataclasses.asdict(report(weights))
        # The first of a backend's folders is its model; what it needs besides is small, and counted there.
        needs = [spec.memory_mb for spec in specs if weights_name(spec.weights[0]) == told["name"]]
        rows.append({**told, "memory_mb": max(needs, default=0), "backends": [spec.name for spec in specs]})
    return rows


def _wanted(names: list[str], preset: str | None) -> list[Any]:
    from engines import hub
    from engines.api import EngineError
    from engines.catalogue import MODELS
    from engines.registry import BACKENDS, HubRepo, find_lineup, weights_name

    made = {weights_name(weights): weights for spec in BACKENDS.values() for weights in spec.weights}
    wanted: dict[Any, None] = {}
    for spec in find_lineup(preset) if preset else ():
        wanted.update(dict.fromkeys(spec.weights))
    for name in names:
        if name in BACKENDS:
            wanted.update(dict.fromkeys(BACKENDS[name].weights))
        elif name in made or name in MODELS:
            wanted[made.get(name, name)] = None
        elif hub.is_repo(name):
            repo, _, revision = name.partition("@")
            wanted[HubRepo(repo, revision or None)] = None
        else:
            known = ", ".join(dict.fromkeys([*made, *MODELS]))
            raise EngineError("unknown_model", f"no model {name!r}; there are: {known}; or owner/name of a hub")
    return list(wanted)


def _texts(row: dict[str, Any]) -> dict[str, str]:
    return {
        **{name: str(row[name]) for name in ("name", "state", "pinned", "licence")},
        "size": f"{row['download_bytes'] / 1e6:.0f} MB" if row["download_bytes"] else "-",
        "memory": f"needs {row['memory_mb']} MB" if row["memory_mb"] else "",
        "backends": ", ".join(row["backends"]),
    }
