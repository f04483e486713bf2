"""Where the gateway refuses to listen: anything that would let strangers talk to it, or read along."""

from __future__ import annotations

import ipaddress

from gateway.settings import ConfigurationError, Settings


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach the address. A name other than ``localhost`` is not taken for one."""
    if host.lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def check_listening(settings: Settings) -> None:
    """Raises :class:`ConfigurationError` with one of ``tls_incomplete``, ``tls_unreadable``, ``key_empty``,
    ``key_required``, ``tls_required``."""
    if (settings.tls_cert is None) != (settings.tls_key is None):
        missing = "tls_cert" if settings.tls_cert is None else "tls_key"
        raise ConfigurationError("tls_incomplete", f"{missing}: TLS needs both tls_cert and tls_key")
    for name, path in (("tls_cert", settings.tls_cert), ("tls_key", settings.tls_key)):
        if path is not None and not path.is_file():
            raise ConfigurationError("tls_unreadable", f"{name}: there is no file {path}")
    if settings.key is not None and not settings.key.get_secret_value().strip():
        raise ConfigurationError("key_empty", "key: an empty key protects nothing; unset it, or give a real one")
    if is_loopback(settings.host):
        return
    where = f"listening on {settings.host} lets other machines call"
    if settings.key is None:
        raise ConfigurationError("key_required", f"key: {where}: set OFFHOOK_KEY, or listen on 127.0.0.1")
    if settings.tls_cert is None and not settings.trusted_proxies:
        raise ConfigurationError(
            "tls_required",
            f"tls_cert: {where}: give tls_cert and tls_key, or name the proxy that ends TLS in trusted_proxies",
        )
