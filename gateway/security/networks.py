"""Where a peer is: addresses as sockets and settings give them, and the networks that hold them."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable

Address = ipaddress.IPv4Address | ipaddress.IPv6Address
Network = ipaddress.IPv4Network | ipaddress.IPv6Network


def parse_address(host: str) -> Address | None:
    """Without brackets and zone, and as IPv4 what a socket of both families gives as ``::ffff:192.0.2.1``. None: it is
    a name, or nothing at all."""
    try:
        address = ipaddress.ip_address(host.strip("[]").partition("%")[0])
    except ValueError:
        return None
    if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped is not None:
        return address.ipv4_mapped
    return address


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach the address. A name other than ``localhost`` is not taken for one."""
    if host.lower() == "localhost":
        return True
    address = parse_address(host)
    return address is not None and address.is_loopback


class Networks:
    """Some addresses and networks, as settings name them. Raises :class:`ValueError` for what is neither."""

    def __init__(self, named: Iterable[str]) -> None:
        self._networks: tuple[Network, ...] = tuple(ipaddress.ip_network(one) for one in named)

    def __bool__(self) -> bool:
        return bool(self._networks)

    def __contains__(self, host: str) -> bool:
        address = parse_address(host)
        return address is not None and any(address in network for network in self._networks)
