"""Whether new calls are taken, and if not, why."""

from __future__ import annotations

from engines.api import EngineHealth
from gateway.switchboard import Switchboard


def unready(switchboard: Switchboard, health: EngineHealth) -> dict[str, str] | None:
    """Why new calls had better go elsewhere. While a host is down, calls that are up stay up; new ones are refused
    only if nothing stands in for it."""
    if switchboard.draining:
        return {"status": "draining"}
    if not (health.healthy and health.takes_calls):
        return {"status": "unwell", "reason": health.reason or "no engine serves a stage"}
    measure = switchboard.overloaded_by(health)
    if measure is not None:
        return {"status": "overloaded", "reason": measure}
    return None
