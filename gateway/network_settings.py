"""Addresses and networks in tables of the settings."""

from __future__ import annotations

import ipaddress
from typing import Annotated

from pydantic import AfterValidator, BeforeValidator
from pydantic_settings import NoDecode

from gateway.engine_settings import comma_separated


def _address(value: str) -> str:
    """Empty: none. A name would have to be looked up, and could change under a call."""
    if value:
        try:
            ipaddress.ip_address(value)
        except ValueError:
            raise ValueError(f"{value!r} is not an IP address; a host name is not taken") from None
    return value


def _network(value: str) -> str:
    try:
        ipaddress.ip_network(value)
    except ValueError:
        raise ValueError(f"{value!r} is not an address or a network such as 10.0.0.0/24") from None
    return value


Address = Annotated[str, AfterValidator(_address)]
Networks = Annotated[tuple[Annotated[str, AfterValidator(_network)], ...], NoDecode, BeforeValidator(comma_separated)]
"""In a file a list, in the environment and on the command line with commas between."""
