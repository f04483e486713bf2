"""Repositories of a model hub that a user names: fetched at one commit, and kept at it.

A name without a commit id is resolved to one when it is first fetched, and that is remembered beside the models: the
same command runs the same weights tomorrow, whatever is pushed meanwhile. To move on, name another commit, or remove
the pin.
"""

from __future__ import annotations

import fnmatch
import os
import re
import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import structlog

from engines import fetch
from engines.api import EngineError

NOT_WEIGHTS = ("*.onnx", "*.msgpack", "*.h5", "*.gguf", "*.md", "*.png", "*.jpg", "*.wav", "*.mp3", ".gitattributes")
"""What no backend here reads of a repository that is made for several frameworks."""

Report = Callable[[int], None]
"""Told the bytes so far. What it raises stops the download."""

REACH_S = 10.0
_COMMIT = re.compile(r"[0-9a-f]{40}")
_REPO = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")

_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class HubFile:
    path: str
    size_bytes: int


def is_repo(name: str) -> bool:
    """Whether ``name`` looks like ``owner/name``, with or without ``@revision``."""
    return _REPO.fullmatch(name.partition("@")[0]) is not None


def is_commit(revision: str) -> bool:
    return _COMMIT.fullmatch(revision) is not None


def pinned(repo: str, revision: str | None = None) -> str | None:
    """The commit that a name stands for on this machine; None before it was first fetched."""
    if revision is not None and is_commit(revision):
        return revision
    try:
        commit = _pin_file(repo, revision).read_text("ascii").strip()
    except (OSError, UnicodeDecodeError):
        return None
    return commit if is_commit(commit) else None


def folder_name(repo: str, commit: str) -> str:
    return f"{repo.replace('/', '--')}-{commit}"


def ensure_repo(repo: str, revision: str | None = None, progress: fetch.Progress | None = None) -> Path:
    """The folder of a repository's files at one commit, fetched first if it is not here. Blocks.

    Raises:
        EngineError: ``model_fetch_failed``, ``missing_extra``.
    """
    commit = pinned(repo, revision) or _resolve(repo, revision)

    def build(into: Path) -> None:
        files = list_files(repo, commit)
        total_bytes = sum(file.size_bytes for file in files)
        _log.info("fetching model", model=repo, commit=commit, bytes=total_bytes)

        def report(done_bytes: int) -> None:
            if progress is not None:
                progress(repo, done_bytes, total_bytes)

        download(repo, commit, [file.path for file in files], into, report)
        report(total_bytes)

    return fetch.derived(folder_name(repo, commit), build)


def list_files(repo: str, commit: str) -> list[HubFile]:
    """What of a repository is worth having. Raises :class:`EngineError` (``model_fetch_failed``)."""
    with _reaching(f"list {repo} at {commit}") as hub:
        info = hub.HfApi().model_info(repo, revision=commit, files_metadata=True)
    files = [HubFile(entry.rfilename, entry.size or 0) for entry in info.siblings]
    return [file for file in files if not any(fnmatch.fnmatch(file.path, pattern) for pattern in NOT_WEIGHTS)]


def check(repo: str, revision: str | None = None) -> None:
    """See that the hub has it. Raises :class:`EngineError` (``model_fetch_failed``, ``missing_extra``)."""
    with _reaching(f"find {repo}") as hub:
        hub.HfApi().model_info(repo, revision=revision, timeout=REACH_S)


def download(repo: str, commit: str, paths: Iterable[str], into: Path, report: Report) -> None:
    """Fetch files into a folder, each under its own path. Raises :class:`EngineError` (``model_fetch_failed``)."""
    before_bytes = 0
    for path in paths:
        report(before_bytes)
        with _reaching(f"fetch {path} of {repo} at {commit}") as hub:
            bar = _bar(partial(_report_from, report, before_bytes))
            hub.hf_hub_download(repo, path, revision=commit, local_dir=str(into), tqdm_class=bar)
        before_bytes += (into / path).stat().st_size
    shutil.rmtree(into / ".cache", ignore_errors=True)  # the hub client's bookkeeping


def _report_from(report: Report, before_bytes: int, done_bytes: int) -> None:
    report(before_bytes + done_bytes)


def _resolve(repo: str, revision: str | None) -> str:
    """Ask the hub which commit a name stands for now, and remember the first answer."""
    with _reaching(f"find {repo}{f' at {revision}' if revision else ''}") as hub:
        commit = str(hub.HfApi().model_info(repo, revision=revision).sha)
    file = _pin_file(repo, revision)
    file.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile("w", dir=file.parent, prefix=".pin-") as work:
        work.write(commit + "\n")
        work.flush()
        try:
            os.link(work.name, file)  # the first of several processes decides
        except FileExistsError:
            commit = pinned(repo, revision) or commit
    _log.info("pinned model", model=repo, commit=commit)
    return commit


def _pin_file(repo: str, revision: str | None) -> Path:
    name = f"{repo}@{revision}" if revision else repo
    return fetch.cache_folder() / "models" / "pins" / name.replace("/", "--")


def _bar(report: Report) -> Any:
    """A progress bar of the hub client's kind that draws nothing."""
    from tqdm import tqdm  # type: ignore[import-untyped, unused-ignore]

    class Bar(tqdm):  # type: ignore[misc, type-arg, unused-ignore]
        monitor_interval = 0  # no thread of its own

        def __init__(self, *args: Any, **named: Any) -> None:
            named.pop("name", None)
            super().__init__(*args, **{**named, "disable": True})
            self.done_bytes = named.get("initial") or 0

        def update(self, n: float | None = 1) -> bool | None:
            self.done_bytes += int(n or 0)
            report(self.done_bytes)
            return None

    return Bar


@contextmanager
def _reaching(to: str) -> Iterator[Any]:
    """The hub client. What its HTTP library raises is one error of ours."""
    try:
        import huggingface_hub
    except ImportError:
        raise EngineError("missing_extra", "models of a hub need its client: pip install -e '.[embedded]'") from None
    try:
        yield huggingface_hub
    except (EngineError, fetch.CancelledFetchError):
        raise
    except Exception as error:
        place = os.environ.get("HF_ENDPOINT") or "https://huggingface.co"
        raise EngineError("model_fetch_failed", f"cannot {to}: {error} (at {place})") from error
