"""What callers on phone wires are told on the command line, the same for one call and for many."""

from __future__ import annotations

from typing import Annotated

import typer

User = Annotated[str | None, typer.Option(help="SIP: who answers a challenge (default: the caller).")]
Password = Annotated[str | None, typer.Option(envvar="OFFHOOK_SIP_PASSWORD", help="SIP: answers a challenge.")]
Codec = Annotated[str | None, typer.Option(help="SIP: offer pcmu or pcma only.")]
Parameters = Annotated[
    list[str] | None, typer.Option(help="Twilio: NAME=VALUE of the stream; may be given several times.")
]
AuthToken = Annotated[str | None, typer.Option(envvar="TWILIO_AUTH_TOKEN", help="Twilio: signs the stream's upgrade.")]
SignedUrl = Annotated[
    str | None, typer.Option(help="Twilio: the public address that is signed, if it is not the one called.")
]
