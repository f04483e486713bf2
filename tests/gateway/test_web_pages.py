from __future__ import annotations

import gzip
import re
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest
from pydantic import SecretStr
from starlette.exceptions import HTTPException

from gateway.settings import AgentSettings, Settings
from gateway.web_pages import CONTENT_TYPES, WEB, WHAT_THIS_IS, answer_file, web_files
from tests.gateway.test_app import NULL, warm

BROWSER = {"accept": "text/html,application/xhtml+xml,*/*;q=0.8"}


@pytest.fixture
async def client() -> AsyncIterator[httpx.AsyncClient]:
    async with warm() as (client, _):
        yield client


async def test_a_browser_gets_the_page_at_the_front_and_others_a_few_words(client: httpx.AsyncClient) -> None:
    page = await client.get("/", headers=BROWSER)
    assert page.headers["content-type"] == "text/html; charset=utf-8"
    assert "<title>Offhook" in page.text
    words = await client.get("/", headers={"accept": "*/*"})
    assert words.text == WHAT_THIS_IS
    assert "Accept" in page.headers["vary"]
    assert words.headers["vary"] == "Accept"
    assert (await client.get("/call")).text == page.text


async def test_every_file_has_its_type_and_may_do_little(client: httpx.AsyncClient) -> None:
    for path, file in web_files().items():
        response = await client.get("/web/" + path)
        assert response.content == (WEB / path).read_bytes()
        assert response.headers["content-type"] == CONTENT_TYPES[Path(path).suffix]
        assert response.headers["etag"] == file.etag
        assert response.headers["cache-control"] == "no-cache"
        assert response.headers["x-content-type-options"] == "nosniff"
        assert "microphone=(self)" in response.headers["permissions-policy"]
        policy = response.headers["content-security-policy"]
        assert "default-src 'self';" in policy
        assert "frame-ancestors 'none'" in policy
        assert "unsafe" not in policy


async def test_what_a_client_has_is_not_sent_again(client: httpx.AsyncClient) -> None:
    etag = (await client.get("/web/style.css")).headers["etag"]
    for known in (etag, etag.removeprefix("W/"), f'"other", {etag}', "*"):
        again = await client.get("/web/style.css", headers={"if-none-match": known})
        assert (again.status_code, again.content) == (304, b"")
        assert again.headers["etag"] == etag
    assert (await client.get("/web/style.css", headers={"if-none-match": '"other"'})).status_code == 200


async def test_files_go_packed_where_that_is_understood() -> None:
    packed = answer_file("style.css", {"accept-encoding": "br, gzip"})
    plain = answer_file("style.css", {})
    assert packed.headers["content-encoding"] == "gzip"
    assert len(packed.body) < len(plain.body)
    assert gzip.decompress(packed.body) == plain.body
    assert "content-encoding" not in plain.headers


@pytest.mark.parametrize(
    "path",
    [
        "/web/",
        "/web/nowhere.js",
        "/web/../pyproject.toml",
        "/web/%2e%2e/pyproject.toml",
        "/web/..%2fgateway/app.py",
        "/web//etc/passwd",
        "/web/call",
        "/web/call/index.html/",
        "/web/call/index.html%00.js",
    ],
)
async def test_nothing_else_can_be_reached(client: httpx.AsyncClient, path: str) -> None:
    response = await client.get(httpx.URL("http://127.0.0.1:8080", raw_path=path.encode()))
    assert (response.status_code, response.json()["error"]["code"]) == (404, "not_found")


async def test_pages_need_no_key_and_who_can_be_called_does() -> None:
    settings = NULL.model_copy(update={"key": SecretStr("sesame"), "page_key": SecretStr("door")})
    async with warm(settings) as (client, _):
        for path in ("/", "/call", "/web/call/main.js", "/web/style.css"):
            assert (await client.get(path, headers=BROWSER)).status_code == 200
        assert (await client.get("/v1/agents")).status_code == 401
        for key in ("sesame", "door"):
            assert (await client.get("/v1/agents", headers={"authorization": f"Bearer {key}"})).status_code == 200
        assert (await client.get("/v1/calls", headers={"authorization": "Bearer door"})).status_code == 403


async def test_agents_are_told_without_how_they_are_instructed() -> None:
    settings = Settings(preset="null", agents={"anna": AgentSettings(greeting="Hello.", instructions="SECRET")})
    async with warm(settings) as (client, _):
        response = await client.get("/v1/agents")
    assert "SECRET" not in response.text
    assert response.headers["cache-control"] == "no-store"
    rows = {row["name"]: row for row in response.json()["data"]}
    assert rows["anna"] == {"name": "anna", "greeting": "Hello.", "language": "en"}
    assert "default" in rows
    assert response.json()["notice"].startswith("FAKE engines")


async def test_without_the_call_page_there_are_only_the_files() -> None:
    async with warm(NULL.model_copy(update={"call_page": False})) as (client, _):
        assert (await client.get("/", headers=BROWSER)).text == WHAT_THIS_IS
        assert (await client.get("/call")).status_code == 404
        assert (await client.get("/v1/agents")).status_code == 404
        assert (await client.get("/web/style.css")).status_code == 200


def test_a_missing_folder_is_named(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="call"):
        web_files(tmp_path)


def test_a_missing_file_is_no_page() -> None:
    with pytest.raises(HTTPException):
        answer_file("nowhere.css", {})


def test_what_pages_ask_for_is_there() -> None:
    """No page or sheet names a file that is not served: nothing here is checked by a build."""
    for path, file in web_files().items():
        text = file.body.decode()
        named = re.findall(r'(?:href|src|url|from|import)\s*[=(]?\s*["\'](/web/[^"\'#]+|\./[^"\']+)', text)
        for name in named:
            folder = path.rpartition("/")[0]
            found = name.removeprefix("/web/") if name.startswith("/web/") else f"{folder}/{name.removeprefix('./')}"
            assert found in web_files(), f"{path} names {name}"
