"""What the gateway can be told: defaults, then ``offhook.toml``, then ``OFFHOOK_…`` variables, then flags.

Every error names the key, where its value came from, and for an unknown key the nearest known one.
"""

from __future__ import annotations

import difflib
import json
import os
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

from pydantic import AfterValidator, BaseModel, BeforeValidator, Field, SecretStr, ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined
from pydantic_settings import (
    BaseSettings,
    EnvSettingsSource,
    NoDecode,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
    SettingsError,
)

from engines.api import EngineError
from engines.registry import Kind, Lineup
from engines.selection import select
from gateway.admission_settings import AdmissionSettings
from gateway.agent_settings import DEFAULT_INSTRUCTIONS
from gateway.agent_settings import AgentSettings as AgentSettings
from gateway.bridge_settings import AsteriskSettings, AudioSocketSettings, FreeswitchSettings
from gateway.carrier_settings import (
    JambonzSettings,
    PlivoSettings,
    TelnyxSettings,
    TwilioSettings,
    VonageSettings,
    WebUrl,
)
from gateway.engine_settings import EngineSettings, comma_separated
from gateway.media_settings import MediaSettings
from gateway.network_settings import Networks
from gateway.null_settings import NullSettings
from gateway.outbound_settings import OutboundSettings
from gateway.phone_settings import PhoneSettings
from gateway.security.origins import parse_origin
from gateway.sip_settings import SipSettings, TrunkSettings
from gateway.telemetry_settings import TelemetrySettings
from streaming.config import Eagerness

DEFAULT_FILE = Path("offhook.toml")
ENV_PREFIX = "OFFHOOK_"
ENV_OF_OTHERS = frozenset({"OFFHOOK_CACHE"})
"""Variables with our prefix that are not settings: where models are kept is asked before settings exist."""

CALLS_PER_CORE = 8

_OF_A_LANGUAGE: tuple[Kind, ...] = ("stt", "tts")

FAREWELL = "I am sorry, this line has to close now. Goodbye."


class ConfigurationError(Exception):
    """The gateway must not start like this. ``code`` is stable; ``problems`` are for a person, one a line."""

    def __init__(self, code: str, *problems: str) -> None:
        super().__init__("\n".join(problems))
        self.code = code
        self.problems = problems


def _origin(value: str) -> str:
    origin = parse_origin(value)
    if origin is None:
        raise ValueError(f"{value!r} is not an origin such as https://voice.example.com (scheme, host, port; no path)")
    return str(origin)


Origins = Annotated[tuple[Annotated[str, AfterValidator(_origin)], ...], NoDecode, BeforeValidator(comma_separated)]


class Settings(BaseSettings):
    """Built directly, it reads neither file nor environment; :func:`load_settings` does."""

    model_config = SettingsConfigDict(
        env_prefix=ENV_PREFIX, env_nested_delimiter="__", extra="forbid", frozen=True, hide_input_in_errors=True
    )

    host: str = Field(default="127.0.0.1", min_length=1, description="address to listen on")
    port: int = Field(default=8080, ge=0, le=65_535, description="port to listen on; 0 picks a free one")
    preset: str = Field(default="embedded", min_length=1, description="which set of engines answers")
    key: SecretStr | None = Field(default=None, description="bearer key; needed to listen beyond loopback")
    page_key: SecretStr | None = Field(
        default=None, description="what a person types into the call page; opens locked calls to agents, nothing else"
    )
    console_key: SecretStr | None = Field(default=None, description="what an operator types into the console")
    call_page: bool = Field(default=True, description="serve the call page at /")
    client_secrets_reusable: bool = Field(
        default=False, description="a client secret opens any number of calls until it expires; off: one"
    )
    allowed_origins: Origins = Field(
        default=(), description="web origins whose pages may call, beside the gateway's own"
    )
    tls_cert: Path | None = Field(default=None, description="PEM certificate chain")
    tls_key: Path | None = Field(default=None, description="PEM private key")
    trusted_proxies: Networks = Field(
        default=(), description="addresses or networks whose X-Forwarded-* headers are believed"
    )
    public_url: WebUrl = Field(
        default="", description="where carriers reach this gateway: https://voice.example.com; empty: as they ask"
    )
    max_calls: int | None = Field(default=None, ge=1, description=f"calls at once; unset: {CALLS_PER_CORE} a core")
    max_call_s: float = Field(default=3_600.0, gt=0, description="the longest call")
    drain_s: float = Field(default=30.0, ge=0, description="on SIGTERM, how long calls may go on before they are ended")
    max_message_bytes: int = Field(
        default=24 * 1024 * 1024, ge=1024, description="largest WebSocket message; beyond: 1009"
    )
    recent_calls: int = Field(default=200, ge=0, le=10_000, description="ended calls kept for /v1/calls")
    log_level: Literal["debug", "info", "warning", "error"] = Field(default="info", description="least severity logged")
    log_json: bool = Field(default=False, description="one JSON object a line")
    log_caller_text: bool = Field(default=False, description="log what callers and agents say; off: redacted")
    default_instructions: str = Field(
        default=DEFAULT_INSTRUCTIONS, description="for Realtime clients that name no agent"
    )
    engines: EngineSettings = Field(default_factory=EngineSettings, description="[engines] table")
    admission: AdmissionSettings = Field(default_factory=AdmissionSettings, description="[admission] table")
    null: NullSettings = Field(default_factory=NullSettings, description="[null] table")
    media: MediaSettings = Field(default_factory=MediaSettings, description="[media] table")
    phone: PhoneSettings = Field(default_factory=PhoneSettings, description="[phone] table")
    sip: SipSettings = Field(default_factory=SipSettings, description="[sip] table")
    twilio: TwilioSettings = Field(default_factory=TwilioSettings, description="[twilio] table")
    telnyx: TelnyxSettings = Field(default_factory=TelnyxSettings, description="[telnyx] table")
    plivo: PlivoSettings = Field(default_factory=PlivoSettings, description="[plivo] table")
    vonage: VonageSettings = Field(default_factory=VonageSettings, description="[vonage] table")
    jambonz: JambonzSettings = Field(default_factory=JambonzSettings, description="[jambonz] table")
    audiosocket: AudioSocketSettings = Field(default_factory=AudioSocketSettings, description="[audiosocket] table")
    asterisk: AsteriskSettings = Field(default_factory=AsteriskSettings, description="[asterisk] table")
    freeswitch: FreeswitchSettings = Field(default_factory=FreeswitchSettings, description="[freeswitch] table")
    outbound: OutboundSettings = Field(default_factory=OutboundSettings, description="[outbound] table")
    telemetry: TelemetrySettings = Field(default_factory=TelemetrySettings, description="[telemetry] table")
    farewell: str = Field(default=FAREWELL, description="spoken to the calls still up when the server stops")
    agents: dict[str, AgentSettings] = Field(default_factory=dict, description="[agents.NAME] tables")

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        return (init_settings,)

    def lineup(self) -> Lineup:
        """The backends that serve: the preset's, with those of ``[engines]`` in their place.

        Raises:
            ConfigurationError: ``unknown_preset``, ``unknown_backend``, ``unknown_model``, ``bad_options``;
                ``unsupported_language`` for an agent that could neither hear nor speak, nor even apologise.
        """
        try:
            lineup = self.null.applied_to(select(self.preset, self.engines.choices()))
        except EngineError as error:
            raise ConfigurationError(error.code, str(error)) from None
        mute = [
            f"agents.{name}.language: no {stage} backend here knows {agent.language!r}; they know "
            f"{', '.join(sorted({known for spec in lineup.chains[stage] for known in spec.languages}))}"
            for name, agent in self.agents.items()
            for stage in _OF_A_LANGUAGE
            if not any(_knows(spec.languages, agent.language) for spec in lineup.chains[stage])
        ]
        if mute:
            raise ConfigurationError("unsupported_language", *mute)
        return lineup

    def calls_at_once(self, cores: int | None = None) -> int:
        """``max_calls``, or what this machine's cores carry with the embedded preset."""
        return self.max_calls or CALLS_PER_CORE * (cores or os.cpu_count() or 1)


_TABLES: dict[str, type[BaseModel]] = {
    name: field.annotation
    for name, field in Settings.model_fields.items()
    if isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel)
}
"""The tables of a settings file, beside those of the agents: every setting that is a model."""


def _knows(languages: tuple[str, ...], tag: str) -> bool:
    """None are named: it knows any, or says itself what not."""
    return not languages or not tag or tag.partition("-")[0].lower() in languages


@dataclass(frozen=True, slots=True)
class _Source:
    label: str
    values: Mapping[str, Any]

    def says(self, path: tuple[str | int, ...]) -> bool:
        """Whether this source gives the key of this path, or something above it that is no table."""
        here: object = self.values
        for part in path:
            if not isinstance(here, Mapping):
                return True
            if part not in here:
                return False
            here = here[part]
        return True

    def names(self, path: tuple[str | int, ...]) -> str:
        key = dotted(path)
        if self.label == "environment":
            names = [part for part in path if isinstance(part, str)]  # a variable holds a whole list
            return f"{ENV_PREFIX}{'__'.join(names).upper()} (environment)"
        return f"{key} ({self.label})"


def load_settings(
    *, file: Path | None = None, flags: Mapping[str, Any] | None = None, environ: Mapping[str, str] = os.environ
) -> Settings:
    """Read every source. ``file`` must exist if it is named; ``offhook.toml`` in the working folder need not.
    ``flags`` whose value is None were not given. Raises :class:`ConfigurationError` (``invalid_settings``)."""
    given = {name: value for name, value in (flags or {}).items() if value is not None}
    sources = [_Source("flag", given), _Source("environment", _environment(environ)), _file_source(file)]
    merged: dict[str, Any] = {}
    for source in reversed(sources):
        _merge(merged, source.values)
    try:
        return Settings(**merged)
    except ValidationError as error:
        problems = [_explain(dict(detail), sources) for detail in error.errors(include_url=False, include_input=False)]
        raise ConfigurationError("invalid_settings", *problems) from None


def _file_source(file: Path | None) -> _Source:
    path = file or DEFAULT_FILE
    if file is None and not path.exists():
        return _Source(str(path), {})
    try:
        return _Source(str(path), tomllib.loads(path.read_text("utf-8")))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise ConfigurationError("invalid_settings", f"{path}: {reason}") from None


class _NotJsonError(ValueError):
    """A variable that holds a table, or a list of lists, in some other form."""


class _Environment(EnvSettingsSource):
    """Reads the mapping it is given, so that a test needs no process-wide change."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        self._environ = environ
        super().__init__(Settings)

    def _load_env_vars(self) -> Mapping[str, str | None]:
        return {name.lower(): value for name, value in self._environ.items() if name.upper() not in ENV_OF_OTHERS}

    def decode_complex_value(self, field_name: str, field: FieldInfo, value: Any) -> Any:
        """Without the value in what it raises, which may be a password; with the variable's name, which is not known
        here: it is the one that ends so, and holds this."""
        try:
            return super().decode_complex_value(field_name, field, value)
        except ValueError:
            ours = (
                name for name, held in self.env_vars.items() if held == value and name.startswith(ENV_PREFIX.lower())
            )
            name = next((name for name in ours if name.endswith(field_name.lower())), f"{ENV_PREFIX}…{field_name}")
            raise _NotJsonError(f'{name.upper()} (environment): must be JSON, such as {{"name": "value"}}') from None


def _environment(environ: Mapping[str, str]) -> dict[str, Any]:
    try:
        values = dict(_Environment(environ)())
    except SettingsError as error:
        said = error.__cause__ if isinstance(error.__cause__, _NotJsonError) else f"environment: {error}"
        raise ConfigurationError("invalid_settings", str(said)) from None
    # A misspelt variable would otherwise be silently ignored: pass it on, so that it is refused as an unknown key.
    for name in environ:
        if name.upper().startswith(ENV_PREFIX) and name.upper() not in ENV_OF_OTHERS:
            top = name.lower().removeprefix(ENV_PREFIX.lower()).split("__")[0]
            if top not in Settings.model_fields:
                values[top] = environ[name]
    return values


def _merge(into: dict[str, Any], values: Mapping[str, Any]) -> None:
    for key, value in values.items():
        if isinstance(value, Mapping) and isinstance(into.get(key), dict):
            _merge(into[key], value)
        else:
            into[key] = _copy(value)


def _copy(value: object) -> object:
    return {key: _copy(inner) for key, inner in value.items()} if isinstance(value, Mapping) else value


def dotted(path: tuple[str | int, ...]) -> str:
    return ".".join(str(part) for part in path)


def _explain(detail: dict[str, Any], sources: list[_Source]) -> str:
    path = tuple(detail["loc"])
    said = next((source.names(path) for source in sources if source.says(path)), dotted(path))
    if detail["type"] != "extra_forbidden":
        message = str(detail["msg"]).removeprefix("Value error, ")
        return f"{said}: {message[:1].lower()}{message[1:]}"
    known = sorted(field.alias or name for name, field in _table_of(path).model_fields.items())
    near = difflib.get_close_matches(str(path[-1]), known, n=1)
    hint = f"did you mean {dotted((*path[:-1], near[0]))}?" if near else f"known keys: {', '.join(known)}"
    return f"{said}: unknown key; {hint}"


def _table_of(path: tuple[str | int, ...]) -> type[BaseModel]:
    """The model that the last key of a path is looked for in."""
    found: Any = Settings
    for part in path[:-1]:
        if isinstance(found, type) and issubclass(found, BaseModel):
            field = found.model_fields.get(str(part))
            found = field.annotation if field is not None else None
        else:
            found = next(iter(get_args(found)[1:]), None)  # dict[str, Table], at the table's name
    return found if isinstance(found, type) and issubclass(found, BaseModel) else Settings


def describe(settings: Settings) -> Iterator[str]:
    """The resolved settings as TOML lines, keys and secrets redacted."""
    yield from _described(settings.model_dump(mode="json", exclude={"agents", *_TABLES}))
    for name in _TABLES:
        yield ""
        yield f"[{name}]"
        yield from _described(getattr(settings, name).model_dump(mode="json", by_alias=True))
    for agent, said in settings.agents.items():
        yield ""
        yield f"[agents.{_toml_key(agent)}]"
        for name, value in said.model_dump(mode="json", exclude_none=True).items():
            yield f"{name} = {_toml(value)}"


def _described(values: Mapping[str, Any]) -> Iterator[str]:
    for name, value in values.items():
        yield f"# {name} is not set" if value is None else f"{name} = {_toml(value)}"


def _toml_key(name: str) -> str:
    plain = name.isascii() and name.replace("-", "").replace("_", "").isalnum()
    return name if plain else _toml(name)


def _toml(value: object) -> str:
    if isinstance(value, list):
        return f"[{', '.join(_toml(item) for item in value)}]"
    if isinstance(value, dict):
        pairs = [f"{_toml_key(key)} = {_toml(item)}" for key, item in value.items() if item is not None]
        return f"{{ {', '.join(pairs)} }}" if pairs else "{}"
    return json.dumps(value, ensure_ascii=False)


def documented() -> Iterator[tuple[str, str, str]]:
    """(key, default, meaning) of every setting: the table in docs/operations.md."""
    tables = [(table, f"{name}.") for name, table in _TABLES.items()]
    models: list[tuple[type[BaseModel], str]] = [
        (Settings, ""),
        *tables,
        (TrunkSettings, "sip.trunks.NAME."),
        (AgentSettings, "agents.NAME."),
    ]
    for model, prefix in models:
        for name, field in model.model_fields.items():
            if model is not Settings or (name != "agents" and name not in _TABLES):
                default = field.get_default(call_default_factory=True)
                text = "needed" if field.is_required() else _default_text(default)
                yield prefix + (field.alias or name), text, field.description or ""


def _default_text(value: object) -> str:
    if value is PydanticUndefined:
        return "must be given"
    if value is None or value in ("", (), {}):
        return "not set"
    if isinstance(value, tuple):
        return ", ".join(map(str, value))
    if isinstance(value, Eagerness):
        return value.value
    if isinstance(value, tuple):
        return ", ".join(str(item) for item in value)
    return str(value).lower() if isinstance(value, bool) else str(value)
