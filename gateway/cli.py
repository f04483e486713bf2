"""``offhook``: the one place that puts everything together. Heavy imports wait until a command needs them."""

from __future__ import annotations

import importlib.metadata
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer

USAGE_ERROR = 2
START_ERROR = 1
INTERRUPTED = 130

ConfigFile = Annotated[
    Path | None, typer.Option("--config", help="TOML file; without it, offhook.toml if there is one.", dir_okay=False)
]


def application() -> typer.Typer:
    from engines.bench.command import add_bench_commands
    from gateway.models_command import add_models_commands
    from gateway.outbound_command import add_dial_command
    from loadtest.command import add_call_command
    from loadtest.loadtest_command import add_loadtest_command

    app = typer.Typer(
        name="offhook", help="A real-time voice gateway.", no_args_is_help=True, pretty_exceptions_enable=False
    )
    app.callback()(_options)
    app.command("serve")(serve)
    config = typer.Typer(help="The settings.", no_args_is_help=True)
    config.command("check")(config_check)
    config.command("keys")(config_keys)
    app.add_typer(config, name="config")
    add_call_command(app, hearing_model)
    add_loadtest_command(app)
    add_dial_command(app)
    app.command("doctor")(doctor)
    add_models_commands(app)
    add_bench_commands(app)
    return app


def main() -> None:
    try:
        application()()
    except KeyboardInterrupt:  # before a command had begun; typer sees to those that have
        raise SystemExit(INTERRUPTED) from None


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"offhook {importlib.metadata.version('offhook')}")
        raise typer.Exit


def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Answers phone-style calls with an AI voice."""


def serve(
    config: ConfigFile = None,
    preset: Annotated[
        str | None, typer.Option(help="Which engines answer: embedded, mlx-cpu, mac, cuda, cloud or null.")
    ] = None,
    host: Annotated[str | None, typer.Option(help="Address to listen on.")] = None,
    port: Annotated[int | None, typer.Option(help="Port to listen on; 0 picks a free one.")] = None,
    vad: Annotated[str | None, typer.Option(help="Voice activity: silero, or energy, a fake.")] = None,
    stt: Annotated[
        str | None,
        typer.Option(help="Speech-to-text backends, comma-separated: the first serves, the others stand in."),
    ] = None,
    stt_model: Annotated[
        str | None, typer.Option(help="Model of the first of them: a name, a folder, or owner/name[@revision].")
    ] = None,
    stt_url: Annotated[
        str | None, typer.Option(help="Server of an openai-compatible one, such as http://127.0.0.1:8000/v1.")
    ] = None,
    llm: Annotated[str | None, typer.Option(help="Language model backends, as --stt.")] = None,
    llm_model: Annotated[str | None, typer.Option(help="Its model, as --stt-model.")] = None,
    llm_url: Annotated[str | None, typer.Option(help="Its server, as --stt-url.")] = None,
    tts: Annotated[str | None, typer.Option(help="Text-to-speech backends, as --stt.")] = None,
    tts_model: Annotated[str | None, typer.Option(help="Its model, as --stt-model.")] = None,
    tts_url: Annotated[str | None, typer.Option(help="Its server, as --stt-url.")] = None,
    hosts: Annotated[
        bool | None, typer.Option("--hosts/--no-hosts", help="Models in child processes, or in the gateway's own.")
    ] = None,
    max_calls: Annotated[int | None, typer.Option(help="Calls at once; without it, 8 a core.")] = None,
    drain_s: Annotated[float | None, typer.Option(help="Seconds that calls may go on after SIGTERM.")] = None,
    tls_cert: Annotated[Path | None, typer.Option(help="PEM certificate chain.")] = None,
    tls_key: Annotated[Path | None, typer.Option(help="PEM private key.")] = None,
    allowed_origins: Annotated[str | None, typer.Option(help="Web origins that may call, comma-separated.")] = None,
    trusted_proxies: Annotated[
        str | None, typer.Option(help="Addresses or networks of proxies in front, comma-separated.")
    ] = None,
    log_level: Annotated[str | None, typer.Option(help="debug, info, warning or error.")] = None,
    log_json: Annotated[bool | None, typer.Option("--log-json/--no-log-json", help="One JSON object a line.")] = None,
) -> None:
    """Serve calls until SIGTERM or Ctrl-C; a second one hangs up at once."""
    flags = _nested({name: value for name, value in locals().items() if name != "config"})
    from gateway.server import StartError
    from gateway.server import serve as serve_forever
    from gateway.telemetry.logs import configure_logs

    with _reported():
        settings = _settings(config, flags)
        configure_logs(level=settings.log_level, as_json=settings.log_json, caller_text=settings.log_caller_text)
        try:
            serve_forever(settings, announce=typer.echo)
        except StartError as error:
            typer.echo(f"error ({error.code}): {error}", err=True)
            raise typer.Exit(START_ERROR) from None


def config_check(config: ConfigFile = None) -> None:
    """Print the settings as they resolve, the key hidden; exit code 2 when they are wrong."""
    from gateway.agents.agent import check_agents_known, check_voices_known
    from gateway.security.listening import check_listening
    from gateway.settings import describe
    from gateway.telemetry.traces import check_telemetry

    with _reported():
        settings = _settings(config, {})
        check_listening(settings)
        check_agents_known(settings)
        check_voices_known(settings, settings.lineup())
        check_telemetry(settings)
        typer.echo("\n".join(describe(settings)))


def doctor(
    config: ConfigFile = None,
    preset: Annotated[str | None, typer.Option(help="The preset to judge; default: the configured one.")] = None,
    port: Annotated[int | None, typer.Option(help="The port that must be free.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object.")] = False,
) -> None:
    """Try what would run on this machine. Exit code 0 if what the file and the environment choose would."""
    import json

    from gateway.doctor import examine, lines

    with _reported():
        found = examine(_settings(config, {"preset": preset, "port": port}))
    typer.echo(json.dumps(found.as_dict(), indent=2) if as_json else "\n".join(lines(found)))
    if not found.well:
        raise typer.Exit(START_ERROR)


def config_keys() -> None:
    """List every setting: key, default, meaning."""
    from gateway.settings import documented

    for key, default, meaning in documented():
        typer.echo(f"{key}\t{default}\t{meaning}")


def _nested(flags: dict[str, Any]) -> dict[str, Any]:
    """Flags as the settings have them: those about engines in their table."""
    from gateway.engine_settings import EngineSettings

    given = {name: value for name, value in flags.items() if value is not None}
    engines = {name: given.pop(name) for name in EngineSettings.model_fields if name in given}
    return given | ({"engines": engines} if engines else {})


def _settings(config: Path | None, flags: dict[str, Any]) -> Any:
    from gateway.settings import load_settings

    return load_settings(file=config, flags=flags)


@contextmanager
def _reported() -> Iterator[None]:
    """What went wrong, in a line and an exit code instead of a traceback."""
    from engines.api import EngineError
    from gateway.settings import ConfigurationError

    try:
        yield
    except ConfigurationError as error:
        for problem in error.problems:
            typer.echo(f"error ({error.code}): {problem}", err=True)
        raise typer.Exit(USAGE_ERROR) from None
    except EngineError as error:
        typer.echo(f"error ({error.code}): {error}", err=True)
        raise typer.Exit(START_ERROR) from None


def hearing_model() -> Path | None:
    """The speech-to-text model that the simulated caller hears with, fetched if need be."""
    from engines import fetch
    from engines.api import EngineError

    try:
        with fetch.console_progress() as progress:
            return fetch.ensure("whisper-tiny.en", progress)
    except EngineError as error:
        typer.echo(f"the answers are not written down ({error.code}): {error}", err=True)
        return None


if __name__ == "__main__":
    main()
