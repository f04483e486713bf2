"""Where the gateway refuses to listen: anything that would let strangers talk to it, or read along."""

from __future__ import annotations

from gateway.security.client_secrets import PREFIX
from gateway.security.networks import is_loopback
from gateway.settings import ConfigurationError, Settings


def check_listening(settings: Settings) -> None:
    """Raises :class:`ConfigurationError` with one of ``tls_incomplete``, ``tls_unreadable``, ``key_empty``,
    ``key_reserved``, ``keys_equal``, ``key_required``, ``tls_required``, ``unsigned_calls``,
    ``sip_required``, ``unknown_trunk``."""
    if (settings.tls_cert is None) != (settings.tls_key is None):
        missing = "tls_cert" if settings.tls_cert is None else "tls_key"
        raise ConfigurationError("tls_incomplete", f"{missing}: TLS needs both tls_cert and tls_key")
    for name, path in (("tls_cert", settings.tls_cert), ("tls_key", settings.tls_key)):
        if path is not None and not path.is_file():
            raise ConfigurationError("tls_unreadable", f"{name}: there is no file {path}")
    _check_keys(settings)
    _check_sip(settings)
    if settings.outbound.enabled:
        _check_outbound(settings)
    if is_loopback(settings.host):
        return
    where = f"listening on {settings.host} lets other machines call"
    for name in ("twilio", "telnyx", "plivo", "vonage", "jambonz"):
        if getattr(settings, name).allow_unsigned:
            raise ConfigurationError("unsigned_calls", f"{name}.allow_unsigned: {where}: it is for tests on loopback")
    if settings.key is None:
        raise ConfigurationError("key_required", f"key: {where}: set OFFHOOK_KEY, or listen on 127.0.0.1")
    if settings.tls_cert is None and not settings.trusted_proxies:
        raise ConfigurationError(
            "tls_required",
            f"tls_cert: {where}: give tls_cert and tls_key, or name the proxy that ends TLS in trusted_proxies",
        )


def _check_outbound(settings: Settings) -> None:
    if settings.key is None:
        raise ConfigurationError("key_required", "outbound.enabled: calls cost money: set OFFHOOK_KEY, too")
    if not settings.sip.enabled:
        raise ConfigurationError("sip_required", "outbound.enabled: calls are placed by SIP: set sip.enabled, too")
    name = settings.outbound.trunk
    if name and name not in settings.sip.trunks:
        known = ", ".join(sorted(settings.sip.trunks)) or "none"
        raise ConfigurationError("unknown_trunk", f"outbound.trunk: there is no sip.trunks.{name}; there are: {known}")


def _check_sip(settings: Settings) -> None:
    sip = settings.sip
    if not (sip.enabled and "tls" in sip.transports):
        return
    files = {"sip.tls_cert": sip.tls_cert or settings.tls_cert, "sip.tls_key": sip.tls_key or settings.tls_key}
    for name, path in files.items():
        if path is None:
            raise ConfigurationError("tls_incomplete", f"{name}: sip.transports names tls, which needs a certificate")
        if not path.is_file():
            raise ConfigurationError("tls_unreadable", f"{name}: there is no file {path}")


def _check_keys(settings: Settings) -> None:
    given = {"key": settings.key, "page_key": settings.page_key, "console_key": settings.console_key}
    keys = {name: key.get_secret_value() for name, key in given.items() if key is not None}
    for name, key in keys.items():
        if not key.strip():
            raise ConfigurationError(
                "key_empty", f"{name}: an empty key protects nothing; unset it, or give a real one"
            )
        if key.startswith(PREFIX):
            raise ConfigurationError("key_reserved", f"{name}: what begins with {PREFIX} is taken for a client secret")
        if "key" not in keys:
            raise ConfigurationError("key_required", f"{name}: it protects nothing while key is not set: all is open")
    if len(set(keys.values())) < len(keys):
        raise ConfigurationError(
            "keys_equal", f"{', '.join(keys)}: each must be another, for each opens something else"
        )
