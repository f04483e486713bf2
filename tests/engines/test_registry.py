"""Backends and presets: every name stands for something that is there, and is imported only when it is used."""

from __future__ import annotations

import importlib
import subprocess
import sys
from pathlib import Path

import pytest

from engines.catalogue import MODELS
from engines.registry import BACKENDS, KINDS, PRESETS, BackendSpec, Derived, PresetSpec


@pytest.mark.parametrize("spec", BACKENDS.values(), ids=list(BACKENDS))
def test_every_backend_names_things_that_are_there(spec: BackendSpec) -> None:
    for weights in spec.weights:
        assert (weights.source if isinstance(weights, Derived) else weights) in MODELS
    assert spec.extra or not spec.imports, "a package of no extra cannot be asked for"
    for package in spec.imports:
        pytest.importorskip(package)
    references = [spec.factory, *(weights.recipe for weights in spec.weights if isinstance(weights, Derived))]
    for reference in references:
        module, _, attribute = reference.partition(":")
        assert callable(getattr(importlib.import_module(module), attribute))


@pytest.mark.parametrize("preset", PRESETS.values(), ids=list(PRESETS))
def test_every_preset_has_a_backend_of_the_right_kind_a_stage(preset: PresetSpec) -> None:
    assert [kind for kind in KINDS if preset.chain(kind)] == [kind for kind in KINDS if kind != "turn" or preset.turn]
    assert all(BACKENDS[name].kind == kind for kind in KINDS for name in preset.chain(kind))


def test_voices_that_are_known_before_are_those_that_are_spoken() -> None:
    """Others' are read from their weights, or are the option of that name."""
    from engines.tts.piper import PiperTts
    from engines.tts.scripted import ScriptedTts

    assert BACKENDS["piper-joe"].voices == PiperTts.voices
    assert BACKENDS["scripted-tts"].voices == ScriptedTts().voices
    assert BACKENDS["openai-speech"].voices == BACKENDS["openai-speech"].options["voices"]
    assert not [spec.name for spec in BACKENDS.values() if spec.voices and spec.kind != "tts"]


def test_importing_the_registry_imports_no_engine() -> None:
    heavy = "onnxruntime ctranslate2 faster_whisper mlx mlx_lm gguf torch transformers huggingface_hub"
    code = f"import sys, engines.registry; print([m for m in {heavy.split()} if m in sys.modules])"
    root = Path(__file__).parents[2]
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=root)
    assert out.stdout.strip() == "[]"
