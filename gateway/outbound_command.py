"""``offhook dial``: have a running gateway place a call, and watch it to its end."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from gateway.outbound_client import Dialling

NOT_ANSWERED = 4
INTERRUPTED = 130


def add_dial_command(app: typer.Typer) -> None:
    """Put ``dial`` on ``app``."""

    @app.command("dial")
    def dial(
        to: Annotated[str, typer.Argument(help="sip:USER@HOST, tel:+15551234567 or +15551234567.")],
        url: Annotated[str, typer.Option(help="The running gateway.")] = "http://127.0.0.1:8080",
        key: Annotated[str | None, typer.Option(envvar="OFFHOOK_KEY", help="Its bearer key.")] = None,
        agent: Annotated[str | None, typer.Option(help="Who speaks; without it, default.")] = None,
        caller: Annotated[str | None, typer.Option(help="The caller shown, one of outbound.callers.")] = None,
        ring_s: Annotated[float | None, typer.Option(min=1, max=180, help="Seconds it may ring.")] = None,
        detach: Annotated[bool, typer.Option("--detach", help="Return once it is placed.")] = False,
        as_json: Annotated[
            bool, typer.Option("--json", help="The call as one JSON object on standard output.")
        ] = False,
    ) -> None:
        """Place a call through a running gateway, and tell how it goes; Ctrl-C hangs up.

        Exit codes: 0 it was answered (with --detach: placed), 1 the gateway does not do its part, 2 it cannot be
        dialled as asked, 3 the gateway refuses (by its rules and bounds, or it is full), 4 nobody answered.
        """
        request = {"to": to, "agent": agent, "caller": caller, "ring_s": ring_s}
        request = {name: value for name, value in request.items() if value is not None}
        from gateway.outbound_client import DialError, Dialling, gateway_client

        def say(line: str) -> None:
            typer.echo(line, err=as_json)

        try:
            with gateway_client(url, key) as client:
                call, exit_code = _run(Dialling(client, say), request, detach=detach)
        except DialError as error:
            typer.echo(f"offhook dial: {error}", err=True)
            raise typer.Exit(error.exit_code) from None
        if as_json:
            typer.echo(json.dumps(call))
        if exit_code:
            raise typer.Exit(exit_code)


def _run(dialling: Dialling, request: dict[str, Any], *, detach: bool) -> tuple[dict[str, Any], int]:
    call = dialling.place(request)
    if detach:
        return call, 0
    try:
        call = dialling.watch(call)
    except KeyboardInterrupt:
        dialling.hang_up(call["id"])
        return call, INTERRUPTED
    return call, NOT_ANSWERED if call.get("answered_ms") is None else 0
