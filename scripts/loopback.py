"""Benchmarks of media stay on this machine."""

from __future__ import annotations

import aioice.ice


def only_loopback() -> None:
    """Have aioice offer 127.0.0.1 and nothing else: it has no setting for it, and never does by itself."""

    def loopback(use_ipv4: bool, use_ipv6: bool) -> list[str]:
        return ["127.0.0.1"]

    assert aioice.ice.get_host_addresses is not None
    aioice.ice.get_host_addresses = loopback
