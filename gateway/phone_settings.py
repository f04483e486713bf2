"""The ``[phone]`` table: which agent answers a phone call, whatever wire it comes by."""

from __future__ import annotations

import re
from typing import Annotated

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

MAX_NUMBERS = 10_000

_NUMBER = re.compile(r"\+?[\d\s().\-/]*\d[\d\s().\-/]*")


def plain_number(dialled: str) -> str:
    """A number without ``+`` and what people write between its digits, so that both spellings meet; anything else (the
    user of a SIP address) as it is, in small letters."""
    text = dialled.strip()
    return re.sub(r"\D", "", text) if _NUMBER.fullmatch(text) else text.lower()


def _numbers(table: dict[str, str]) -> dict[str, str]:
    spelt: dict[str, str] = {}
    for number, agent in table.items():
        plain = plain_number(number)
        if not plain:
            raise ValueError(f"{number!r} is not a number such as +15551234567, nor the user of a SIP address")
        if not agent.strip():
            raise ValueError(f"{number!r} has no agent")
        if plain in spelt:
            raise ValueError(f"{number!r} and {spelt[plain]!r} are the same number")
        spelt[plain] = number
    return table


class PhoneSettings(BaseModel):
    """``[phone]``."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    agent: str = Field(default="default", min_length=1, description="who answers what no number or name decides")
    numbers: Annotated[dict[str, str], AfterValidator(_numbers)] = Field(
        default_factory=dict,
        max_length=MAX_NUMBERS,
        description='which agent answers which dialled number: {"+15551234567" = "sales"}',
    )

    def agent_of(self, dialled: str) -> str | None:
        """The agent of a dialled number (or user), if the table names one."""
        plain = plain_number(dialled)
        return next((agent for number, agent in self.numbers.items() if plain_number(number) == plain), None)
