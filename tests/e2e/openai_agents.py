"""OpenAI's own Realtime client for browsers, as it comes from npm: one package, pinned, fetched once, not changed."""

from __future__ import annotations

import base64
import hashlib
import shutil
import subprocess
import tarfile
import tempfile
import urllib.request
from pathlib import Path
from typing import Any

from engines import fetch
from tests.e2e.browser_rig import BrowserPage

PACKAGE, VERSION = "@openai/agents-realtime", "0.20.0"
LICENSE = "MIT"
INTEGRITY = "sha512-KK3w9k9rkqv5mC25vykWTe/1IIcOMsqwJs9mB0aX9Z2Us487xGduZgqr+ENEzthjZbQvTi/+qUv/tfoZeN/p/w=="
"""Of the archive, as npm itself writes it into a lock file."""
_BUNDLE = "package/dist/bundle/openai-realtime-agents.umd.js"
_ARCHIVE = f"https://registry.npmjs.org/{PACKAGE}/-/agents-realtime-{VERSION}.tgz"
_FETCH_S = 120

_CONNECT = """async ({ instructions, key, apiKey }) => {
  const { RealtimeAgent, RealtimeSession, OpenAIRealtimeWebRTC } = OpenAIAgentsRealtime;
  if (key) {
    const asked = await fetch("/v1/realtime/client_secrets", {
      method: "POST",
      headers: { Authorization: `Bearer ${key}`, "Content-Type": "application/json" },
      body: JSON.stringify({ session: { type: "realtime", model: "gpt-realtime" } }),
    });
    apiKey = (await asked.json()).value;
  }
  const transport = new OpenAIRealtimeWebRTC({
    baseUrl: `${location.origin}/v1/realtime/calls`,
    useInsecureApiKey: !apiKey.startsWith("ek_"),
  });
  const agent = new RealtimeAgent({ name: "Assistant", instructions });
  const session = (window.session = new RealtimeSession(agent, { transport, model: "gpt-realtime" }));
  window.seen = { history: [], errors: [], names: [], states: [], order: [] };
  session.on("error", ({ error }) => seen.errors.push(JSON.stringify(error?.error ?? String(error))));
  session.on("history_updated", (history) => (seen.history = structuredClone(history)));
  for (const name of ["agent_start", "agent_end", "audio_stopped"]) {
    session.on(name, () => seen.names.push(name));
  }
  transport.on("connection_change", (state) => (seen.states.push(state), seen.order.push(state)));
  transport.on("*", ({ type }) => seen.order.push(type));
  window.chooseMicrophone = async (name) => {
    const device = (await navigator.mediaDevices.enumerateDevices()).find(({ label }) => label === name);
    const processed = { echoCancellation: false, noiseSuppression: false, autoGainControl: false };
    const audio = { ...processed, deviceId: { exact: device.deviceId } };
    const [track] = (await navigator.mediaDevices.getUserMedia({ audio })).getAudioTracks();
    await transport.connectionState.peerConnection.getSenders()[0].replaceTrack(track);
  };
  await session.connect({ apiKey });
}"""


def bundle() -> Path:
    """One script that defines ``OpenAIAgentsRealtime``. Blocks; the first time it is fetched."""
    return fetch.derived(f"openai-agents-realtime-{VERSION}", _build) / "agents.js"


def _build(into: Path) -> None:
    with tempfile.TemporaryDirectory() as folder:
        archive = _archive(Path(folder))
        digest = hashlib.sha512(archive.read_bytes()).digest()
        assert f"sha512-{base64.b64encode(digest).decode()}" == INTEGRITY, "this is another package"
        with tarfile.open(archive) as files:
            script = files.extractfile(_BUNDLE)
            assert script is not None
            (into / "agents.js").write_bytes(script.read())


def _archive(folder: Path) -> Path:
    npm = shutil.which("npm")
    if npm is not None:  # it knows the user's registry, proxy and certificates
        command = [npm, "pack", f"{PACKAGE}@{VERSION}", "--silent", "--pack-destination", str(folder)]
        subprocess.run(command, cwd=folder, check=True, timeout=_FETCH_S, stdin=subprocess.DEVNULL, capture_output=True)
    else:
        with urllib.request.urlopen(_ARCHIVE, timeout=_FETCH_S) as answer:
            (folder / "package.tgz").write_bytes(answer.read())
    (archive,) = folder.glob("*.tgz")
    return archive


# --- in a page ---------------------------------------------------------------------------------------------------


def connect(caller: BrowserPage, url: str, **how: Any) -> None:
    """A page that holds nothing but the client, in a session."""
    caller.chromium.hush()
    caller.page.route(
        "**/stock", lambda route: route.fulfill(content_type="text/html", body="<!doctype html><title>stock</title>")
    )
    caller.page.route("**/favicon.ico", lambda route: route.fulfill(status=204))
    caller.page.goto(f"{url}/stock")
    caller.page.add_script_tag(path=bundle())
    caller.page.evaluate(
        _CONNECT, {"instructions": "Answer in one short sentence.", "key": "", "apiKey": "none", **how}
    )


def seen(caller: BrowserPage, what: str) -> Any:
    return caller.page.evaluate("(what) => seen[what]", what)


def history(caller: BrowserPage) -> list[tuple[str, str, str]]:
    """Role, status and text of what the client holds."""
    return [
        (
            item["role"],
            item["status"],
            " ".join(part.get("transcript") or part.get("text") or "" for part in item["content"]),
        )
        for item in seen(caller, "history")
        if item["type"] == "message"
    ]
