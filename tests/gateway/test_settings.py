from __future__ import annotations

import tomllib
from pathlib import Path

import pytest
from pydantic import SecretStr

from gateway.engine_settings import EngineSettings
from gateway.settings import AgentSettings, ConfigurationError, Settings, describe, documented, load_settings
from streaming.config import Eagerness


def write(folder: Path, text: str) -> Path:
    path = folder / "some.toml"
    path.write_text(text, "utf-8")
    return path


def problems(**kwargs: object) -> tuple[str, ...]:
    with pytest.raises(ConfigurationError) as caught:
        load_settings(**{"environ": {}, **kwargs})  # type: ignore[arg-type]
    assert caught.value.code == "invalid_settings"
    return caught.value.problems


def test_flags_win_over_environment_over_file_over_defaults(tmp_path: Path) -> None:
    file = write(tmp_path, 'port = 1\nhost = "file"\npreset = "file"\n[agents.anna]\ngreeting = "Hi"\nvoice = "v"\n')
    environ = {"OFFHOOK_PORT": "2", "OFFHOOK_HOST": "environment", "OFFHOOK_AGENTS__ANNA__VOICE": "w"}
    settings = load_settings(file=file, flags={"port": 3, "preset": None}, environ=environ)
    assert (settings.port, settings.host, settings.preset, settings.drain_s) == (3, "environment", "file", 30.0)
    assert (settings.agents["anna"].greeting, settings.agents["anna"].voice) == ("Hi", "w")


def test_the_working_folder_s_file_is_read_if_there_is_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert load_settings(environ={}).port == 8080
    (tmp_path / "offhook.toml").write_text("port = 9", "utf-8")
    assert load_settings(environ={}).port == 9


def test_built_directly_nothing_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "offhook.toml").write_text("port = 9", "utf-8")
    monkeypatch.setenv("OFFHOOK_PORT", "10")
    assert Settings().port == 8080


def test_lists_are_comma_separated_outside_of_toml_and_origins_are_normal(tmp_path: Path) -> None:
    environ = {"OFFHOOK_ALLOWED_ORIGINS": "https://A.example:443, http://b.example:81/"}
    settings = load_settings(environ=environ, flags={"trusted_proxies": "10.0.0.0/8,::1"})
    assert settings.allowed_origins == ("https://a.example", "http://b.example:81")
    assert settings.trusted_proxies == ("10.0.0.0/8", "::1")
    file = write(tmp_path, 'allowed_origins = ["https://c.example"]')
    assert load_settings(file=file, environ={}).allowed_origins == ("https://c.example",)


def test_an_unknown_key_names_the_nearest_one_and_where_it_came_from(tmp_path: Path) -> None:
    file = write(tmp_path, 'prot = 1\n[agents.anna]\ngreting = "Hi"\nzzz = 1\n')
    first, second, third = problems(file=file)
    assert first == f"agents.anna.greting ({file}): unknown key; did you mean agents.anna.greeting?"
    assert second.startswith(f"agents.anna.zzz ({file}): unknown key; known keys: apology, ")
    assert third == f"prot ({file}): unknown key; did you mean port?"


def test_a_misspelt_variable_is_not_silently_ignored() -> None:
    assert problems(environ={"OFFHOOK_PROT": "1"}) == ("OFFHOOK_PROT (environment): unknown key; did you mean port?",)


def test_the_cache_folder_s_variable_is_no_setting() -> None:
    assert load_settings(environ={"OFFHOOK_CACHE": "/somewhere", "HOME": "/x"}) == Settings()


def test_a_bad_value_names_its_key_and_source(tmp_path: Path) -> None:
    file = write(tmp_path, "drain_s = -1\nport = 99\n[agents.anna]\neagerness = 'soon'\n")
    found = problems(file=file, environ={"OFFHOOK_PORT": "x", "OFFHOOK_ALLOWED_ORIGINS": "a"}, flags={"max_calls": 0})
    starts = {problem.split(": ")[0] for problem in found}
    assert starts == {
        f"drain_s ({file})",
        "OFFHOOK_PORT (environment)",
        "OFFHOOK_ALLOWED_ORIGINS (environment)",
        "max_calls (flag)",
        f"agents.anna.eagerness ({file})",
    }


def test_a_table_where_a_value_belongs_and_the_other_way_round(tmp_path: Path) -> None:
    file = write(tmp_path, "agents = 3\n[port]\nnumber = 1\n")
    assert {problem.split(":")[0] for problem in problems(file=file)} == {f"agents ({file})", f"port ({file})"}


def test_a_secret_never_shows_in_an_error() -> None:
    found = problems(environ={"OFFHOOK_KEY": "hush-hush", "OFFHOOK_PORT": "x", "OFFHOOK_AGENTS": "hush-hush"})
    assert "hush-hush" not in "\n".join(found)


@pytest.mark.parametrize(
    "name",
    [
        "OFFHOOK_AGENTS",
        "OFFHOOK_SIP__USERS",
        "OFFHOOK_PHONE__NUMBERS",
        "offhook_sip__users",
        "OFFHOOK_AGENTS__SALES__TRANSFER_TARGETS",
        "OFFHOOK_AGENTS__SALES__EXAMPLES",
    ],
)
def test_a_variable_that_should_hold_json_is_named_without_its_value(name: str) -> None:
    environ = {name: "alice=hush-hush", "OFFHOOK_HOST": "alice=hush-hush", "USERS": "alice=hush-hush"}
    (problem,) = problems(environ=environ)
    assert problem == f'{name.upper()} (environment): must be JSON, such as {{"name": "value"}}'


@pytest.mark.parametrize("content", ["port = ", b"\xff\xfe"])
def test_a_file_that_is_no_toml(tmp_path: Path, content: str | bytes) -> None:
    path = tmp_path / "some.toml"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    assert problems(file=path)[0].startswith(f"{path}: ")


def test_a_named_file_must_exist(tmp_path: Path) -> None:
    path = tmp_path / "none.toml"
    assert problems(file=path) == (f"{path}: No such file or directory",)


@pytest.mark.parametrize("network", ["10.0.0.1/8", "proxy.example"])
def test_a_trusted_proxy_is_an_address_or_a_network(network: str) -> None:
    assert problems(flags={"trusted_proxies": network})[0].startswith("trusted_proxies.0 (flag): ")


def test_calls_at_once() -> None:
    assert Settings().calls_at_once(cores=3) == 24
    assert Settings(max_calls=5).calls_at_once(cores=3) == 5
    assert Settings().calls_at_once() >= 8


def test_the_description_is_toml_that_resolves_to_the_same_but_for_the_key(tmp_path: Path) -> None:
    agents = {"anna": AgentSettings(greeting='Say "hi"\n', eagerness=Eagerness.HIGH), "two words": AgentSettings()}
    settings = Settings(key=SecretStr("hush-hush"), allowed_origins=("https://a.example",), agents=agents)
    text = "\n".join(describe(settings))
    assert "hush-hush" not in text
    again = load_settings(file=write(tmp_path, text), environ={})
    assert tomllib.loads(text)["key"] == "**********"
    assert again.model_copy(update={"key": settings.key}) == settings


def test_every_setting_is_described_and_documented() -> None:
    page = (Path(__file__).parents[2] / "docs" / "operations.md").read_text("utf-8")
    for name, default, meaning in documented():
        assert meaning, name
        assert f"| `{name}` | {default} | {meaning} |" in page


def test_defaults_are_written_as_people_give_them() -> None:
    defaults = {name: default for name, default, _ in documented()}
    assert defaults["sip.transports"] == "udp, tcp"
    assert defaults["sip.trunks.NAME.server"] == "needed"
    assert defaults["audiosocket.uuids"] == "not set"
    assert "agents" not in defaults
    assert "sip" not in defaults


def test_engines_of_ones_own(tmp_path: Path) -> None:
    file = tmp_path / "my.toml"
    file.write_text('preset = "mac"\n[engines]\nllm = "openai-compatible, ctranslate2"\nllm_model = "from the file"\n')
    environ = {"OFFHOOK_ENGINES__LLM_MODEL": "qwen3", "OFFHOOK_ENGINES__STT": "faster-whisper"}
    flags = {"engines": {"llm_url": "http://127.0.0.1:8000/v1", "stt_model": "base"}}
    settings = load_settings(file=file, flags=flags, environ=environ)
    lineup = settings.lineup()
    assert [spec.name for spec in lineup.chains["llm"]] == ["openai-chat", "smollm2-ctranslate2"]
    assert lineup.chains["llm"][0].options["model"] == "qwen3"
    assert lineup.chains["llm"][0].options["base_url"] == "http://127.0.0.1:8000/v1"
    assert [spec.name for spec in lineup.chains["stt"]] == ["faster-whisper-base"]
    assert [spec.name for spec in lineup.chains["tts"]] == ["mlx-kokoro", "torch-kokoro", "piper-joe"]


def test_a_server_of_ones_own_gets_its_own_key_and_voices() -> None:
    engines = EngineSettings(tts=("openai-compatible",), tts_url="https://x/v1", key_env="X_KEY", tts_voices=("anna",))
    options = Settings(engines=engines).lineup().chains["tts"][0].options
    assert (options["api_key_env"], options["voices"]) == ("X_KEY", ("anna",))


@pytest.mark.parametrize(
    ("settings", "code", "said"),
    [
        (Settings(preset="nonesuch"), "unknown_preset", "there are: embedded, mlx-cpu, mac, cuda, cloud, null"),
        (Settings(engines=EngineSettings(stt=("ear",))), "unknown_backend", "no stt backend 'ear'; there are: faster"),
    ],
)
def test_engines_that_there_are_not(settings: Settings, code: str, said: str) -> None:
    with pytest.raises(ConfigurationError, match=said) as caught:
        settings.lineup()
    assert caught.value.code == code


def test_an_unknown_key_of_engines_has_a_neighbour() -> None:
    with pytest.raises(ConfigurationError, match=r"engines\.sttt \(flag\): unknown key; did you mean engines\.stt\?"):
        load_settings(flags={"engines": {"sttt": "x"}}, environ={})


def test_an_interpreter_counts_only_where_there_are_hosts() -> None:
    python = Path("/opt/python")
    assert EngineSettings(mlx_python=python).python("mlx") == python
    assert EngineSettings(mlx_python=python).python("cpu") is None
    assert EngineSettings(mlx_python=python, hosts=False).python("mlx") is None


@pytest.mark.parametrize(
    "url",
    ["http://anna:hunter2@h/v1", "https://hunter2@h/v1", "https://h/v1?key=hunter2", "ws://h/hunter2", "h:hunter2"],
)
def test_the_address_of_a_server_is_judged_at_once_and_what_is_secret_in_it_not_told(url: str) -> None:
    (problem,) = problems(environ={"OFFHOOK_ENGINES__LLM_URL": url})
    assert problem.startswith("OFFHOOK_ENGINES__LLM_URL (environment): must ")
    assert "hunter2" not in problem
    assert load_settings(environ={"OFFHOOK_ENGINES__LLM_URL": "http://[::1]:8000/v1/"}).engines.llm_url


def test_an_agent_whose_language_nobody_knows_is_refused_for_not_even_its_apology_would_be_heard() -> None:
    agents = {"anna": AgentSettings(language="de-AT"), "bert": AgentSettings(language="en-GB")}
    with pytest.raises(ConfigurationError) as caught:
        Settings(agents=agents).lineup()
    assert caught.value.code == "unsupported_language"
    assert [problem.partition(":")[0] for problem in caught.value.problems] == ["agents.anna.language"] * 2
    assert "no stt backend here knows 'de-AT'; they know en" in caught.value.problems[0]
    for known in (
        Settings(agents={"bert": agents["bert"]}),
        Settings(agents=agents, preset="cloud"),
        Settings(agents=agents, engines=EngineSettings(stt=("faster-whisper-base",), tts=("pocket-tts",))),
    ):
        known.lineup()


def test_media_settings_from_the_environment() -> None:
    media = load_settings(
        environ={
            "OFFHOOK_MEDIA__ADVERTISED_IP": "203.0.113.7",
            "OFFHOOK_MEDIA__PORT_RANGE": "40000-40100",
            "OFFHOOK_MEDIA__ICE_SERVERS": "stun:stun.example:3478, turn:[2001:db8::1]:3478?transport=udp",
            "OFFHOOK_MEDIA__TURN_SECRET": "hush",
            "OFFHOOK_MEDIA__PRIVATE_CANDIDATES": "false",
        }
    ).media
    assert media.ports() == (40_000, 40_100)
    assert media.ice_servers == ("stun:stun.example:3478", "turn:[2001:db8::1]:3478?transport=udp")
    assert (media.advertised_ip, media.private_candidates, media.loopback_candidates) == ("203.0.113.7", False, None)
    assert Settings().media.ports() is None


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("ADVERTISED_IP", "voice.example", "not an IP address"),
        ("PORT_RANGE", "40000", "not a range of ports such as 40000-40100"),
        ("PORT_RANGE", "a-b", "not a range of ports"),
        ("PORT_RANGE", "40100-40000", "the lower one first"),
        ("PORT_RANGE", "80-40000", "from 1024"),
        ("PORT_RANGE", "40000-40001", "fewer than 10"),
        ("ICE_SERVERS", "stun.example", "not a server such as stun:HOST:PORT"),
        ("ICE_SERVERS", "http://stun.example", "not a server"),
    ],
)
def test_a_bad_media_setting_names_its_key(name: str, value: str, said: str) -> None:
    (problem,) = problems(environ={f"OFFHOOK_MEDIA__{name}": value})
    assert problem.startswith(f"OFFHOOK_MEDIA__{name} (environment): ")
    assert said in problem


def test_turn_servers_and_their_secret_need_each_other() -> None:
    for media in ({"ice_servers": ["turn:turn.example"]}, {"turn_secret": "hush"}):
        (problem,) = problems(flags={"media": media})
        assert problem.startswith("media (flag): ")
        assert "media.turn_secret" in problem
    (problem,) = problems(environ={"OFFHOOK_MEDIA__PORT_RNGE": "1"})
    assert problem.endswith("unknown key; did you mean media.port_range?")


def test_secrets_are_not_described() -> None:
    media = {"ice_servers": ["turn:turn.example"], "turn_secret": "hush"}
    said = "\n".join(
        describe(load_settings(flags={"key": "k1", "page_key": "k2", "console_key": "k3", "media": media}, environ={}))
    )
    assert not {"hush", "k1", "k2", "k3"} & set(said.replace('"', " ").split())
    assert tomllib.loads(said)["media"]["ice_servers"] == ["turn:turn.example"]
