"""The backends and presets there are.

``memory_mb`` of those that run here without a hub was measured (x86-64, four requests at once, peak of the process over
a bare one, and a tenth): up to 1100. The larger ones are estimates from their weights.
"""

from __future__ import annotations

from types import MappingProxyType
from typing import Any, Literal

from engines.spec import BackendSpec, Derived, Kind, PresetSpec, Weights
from engines.tts.kokoro_voices import VOICES as KOKORO_VOICES

_ONNX = ("onnxruntime",)
_FASTER_WHISPER = "engines.stt.faster_whisper:FasterWhisper"
_MLX_WHISPER = "engines.stt.mlx_whisper:MlxWhisper"
_MLX_LM = "engines.llm.mlx_lm:MlxLanguageModel"
_GGUF = "smollm2-gguf"
_ENGLISH_TEXT = ("misaki-en", "g2p-en")
_OPENAI_VOICES = "alloy ash ballad coral echo fable onyx nova sage shimmer verse".split()
_ENGLISH = ("en",)


def _faster_whisper(
    model: str, weights: Weights, memory_mb: int, languages: tuple[str, ...] = (), **options: Any
) -> BackendSpec:
    cuda = options.get("device") == "cuda"
    family = "faster-whisper-cuda" if cuda else "faster-whisper"
    return BackendSpec(
        f"{family}-{model}",
        "stt",
        _FASTER_WHISPER,
        "embedded",
        ("faster_whisper", "ctranslate2"),
        platforms=("linux",) if cuda else ("linux", "darwin"),
        memory_mb=memory_mb,
        weights=(weights,),
        shares="lane",
        host="cpu",
        options=MappingProxyType(options),
        family=family,
        model=model,
        takes="weights",
        languages=languages,
    )


def _mlx_whisper(model: str, weights: Weights, memory_mb: int, languages: tuple[str, ...] = ()) -> BackendSpec:
    return BackendSpec(
        f"mlx-whisper-{model}",
        "stt",
        _MLX_WHISPER,
        "speech-mlx",
        ("mlx", "mlx_whisper"),
        memory_mb=memory_mb,
        weights=(weights,),
        shares="mlx",
        host="mlx",
        family="mlx-whisper",
        model=model,
        takes="weights",
        languages=languages,
    )


def _mlx_audio(name: str, kind: Literal["stt", "tts"], model: str, memory_mb: int) -> BackendSpec:
    """The streaming models of mlx-audio."""
    return BackendSpec(
        name,
        kind,
        f"engines.{kind}.mlx_streaming:MlxStreaming{kind.capitalize()}",
        "speech-mlx",
        ("mlx", "mlx_audio"),
        memory_mb=memory_mb,
        weights=(model,),
        shares="mlx",
        host="mlx",
        family="mlx-audio",
        model=model,
        takes="weights",
    )


def _mlx_lm(name: str, model: str, weights: Weights, memory_mb: int) -> BackendSpec:
    return BackendSpec(
        name,
        "llm",
        _MLX_LM,
        "mlx",
        ("mlx", "mlx_lm"),
        memory_mb=memory_mb,
        weights=(weights,),
        shares="mlx",
        host="mlx",
        family="mlx-lm",
        model=model,
        takes="weights",
    )


def _openai(name: str, kind: Any, engine: str, model: str, **options: Any) -> BackendSpec:
    options = {"api_key_env": "OPENAI_API_KEY", "model": model, **options}
    return BackendSpec(
        name,
        kind,
        f"engines.{kind}.openai_compatible:{engine}",
        options=MappingProxyType(options),
        family="openai-compatible",
        model=model,
        takes="name",
        voices=tuple(options.get("voices", ())),
    )


def _fake(name: str, kind: Kind, factory: str, voices: tuple[str, ...] = (), **options: Any) -> BackendSpec:
    return BackendSpec(name, kind, factory, options=MappingProxyType(options), voices=voices, fake=True)


ALL_BACKENDS = (
    BackendSpec(
        "silero", "vad", "engines.vad.silero:SileroVad", "embedded", _ONNX, memory_mb=50, weights=("silero-vad",)
    ),
    BackendSpec(
        "smart-turn",
        "turn",
        "engines.turn.smart_turn:SmartTurn",
        "embedded",
        _ONNX,
        memory_mb=75,
        weights=("smart-turn",),
    ),
    # --- speech-to-text
    _faster_whisper("tiny.en", "whisper-tiny.en", 290, _ENGLISH),
    _faster_whisper("base", "whisper-base", 400),
    _faster_whisper("large-v3-turbo", "whisper-large-v3-turbo", 2200, device="cpu", compute_type="int8"),
    _faster_whisper("large-v3-turbo", "whisper-large-v3-turbo", 2600, device="cuda", compute_type="float16"),
    _mlx_whisper("large-v3-turbo", "whisper-large-v3-turbo-mlx", 2400),
    _mlx_whisper(
        "tiny.en",
        Derived("whisper-tiny.en-mlx-1", "whisper-tiny.en", "engines.stt.convert:whisper_mlx"),
        1050,
        _ENGLISH,
    ),
    _mlx_audio("nemotron-streaming", "stt", "nemotron-asr-streaming-0.6b", 1500),
    _mlx_audio("voxtral-streaming", "stt", "voxtral-realtime-4b", 4500),
    _openai("openai-transcription", "stt", "OpenAiSpeechToText", "gpt-4o-mini-transcribe"),
    # --- language models
    BackendSpec(
        "smollm2-ctranslate2",
        "llm",
        "engines.llm.ctranslate2:CTranslate2LanguageModel",
        "embedded",
        ("ctranslate2", "gguf", "tokenizers"),
        memory_mb=480,
        weights=(Derived("smollm2-ctranslate2-int8-1", _GGUF, "engines.llm.convert:smollm2_ctranslate2"),),
        shares="lane",
        host="cpu",
        family="ctranslate2",
        model="smollm2",
        takes="weights",
    ),
    BackendSpec(
        "smollm2-onnx",
        "llm",
        "engines.llm.onnx_model:onnx_language_model",
        "embedded",
        ("onnxruntime", "gguf", "tokenizers"),
        memory_mb=620,
        weights=(Derived("smollm2-onnx-int8-2", _GGUF, "engines.llm.onnx_convert:smollm2_onnx"),),
        shares="lane",
        host="cpu",
        family="onnx",
        model="smollm2",
        takes="weights",
    ),
    BackendSpec(
        "smollm2-mlx",
        "llm",
        _MLX_LM,
        "mlx",
        ("mlx", "mlx_lm", "gguf"),
        memory_mb=1100,
        weights=(Derived("smollm2-mlx-float32-1", _GGUF, "engines.llm.convert:smollm2_mlx"),),
        shares="mlx",
        host="mlx",
        family="mlx-lm",
        model="smollm2",
        takes="weights",
    ),
    _mlx_lm("llama-3.2-3b-mlx", "llama-3.2-3b", "llama-3.2-3b-4bit", 3400),
    _mlx_lm("qwen3-4b-mlx", "qwen3-4b", "qwen3-4b-4bit", 4000),
    _mlx_lm("llama-3.2-3b-bf16-mlx", "llama-3.2-3b-bf16", "llama-3.2-3b-bf16", 8500),
    _openai("openai-chat", "llm", "OpenAiLanguageModel", "gpt-4.1-mini"),
    # --- text-to-speech
    BackendSpec(
        "piper-joe",
        "tts",
        "engines.tts.piper:PiperTts",
        "embedded",
        _ONNX,
        memory_mb=360,
        weights=("piper-joe", *_ENGLISH_TEXT),
        shares="lane",
        host="cpu",
        family="piper",
        model="joe",
        takes="weights",
        languages=_ENGLISH,
        voices=("joe",),
    ),
    BackendSpec(
        "mlx-kokoro",
        "tts",
        "engines.tts.mlx_kokoro:MlxKokoro",
        "mlx",
        ("mlx",),
        memory_mb=1600,
        weights=("kokoro-82m-mlx", *_ENGLISH_TEXT),
        shares="mlx",
        host="mlx",
        family="mlx-kokoro",
        model="kokoro-82m",
        takes="weights",
        languages=_ENGLISH,
        voices=KOKORO_VOICES,
    ),
    BackendSpec(
        "torch-kokoro",
        "tts",
        "engines.tts.torch_kokoro:TorchKokoro",
        "torch",
        ("torch", "safetensors"),
        memory_mb=1300,
        weights=("kokoro-82m-mlx", *_ENGLISH_TEXT),
        shares="lane",
        host="cpu",
        family="torch-kokoro",
        model="kokoro-82m",
        takes="weights",
        languages=_ENGLISH,
        voices=KOKORO_VOICES,
    ),
    _mlx_audio("pocket-tts", "tts", "pocket-tts", 1200),
    _mlx_audio("qwen3-tts", "tts", "qwen3-tts-0.6b", 3000),
    _openai("openai-speech", "tts", "OpenAiTextToSpeech", "gpt-4o-mini-tts", voices=tuple(_OPENAI_VOICES)),
    # --- fakes
    _fake("energy", "vad", "engines.vad.scripted:EnergyVad"),
    _fake("scripted-turn", "turn", "engines.turn.scripted:ScriptedTurn", records=False),
    _fake("scripted-stt", "stt", "engines.stt.scripted_codes:CodeWordStt"),
    _fake("scripted-llm", "llm", "engines.llm.scripted:ScriptedLlm", records=False),
    _fake("scripted-tts", "tts", "engines.tts.scripted:ScriptedTts", voices=("tone",), records=False),
)

_CPU_STT = ("faster-whisper-base",)
_CPU_LLM = ("smollm2-onnx",)
_CPU_TTS = ("piper-joe",)


def _preset(name: str, stt: tuple[str, ...], llm: tuple[str, ...], tts: tuple[str, ...]) -> PresetSpec:
    return PresetSpec(name, "silero", "smart-turn", stt, llm, tts)


ALL_PRESETS = (
    _preset("embedded", ("faster-whisper-tiny.en",), _CPU_LLM, _CPU_TTS),
    _preset("mlx-cpu", ("faster-whisper-tiny.en",), ("smollm2-mlx", *_CPU_LLM), _CPU_TTS),
    _preset(
        "mac",
        ("mlx-whisper-large-v3-turbo", *_CPU_STT),
        ("llama-3.2-3b-mlx", *_CPU_LLM),
        ("mlx-kokoro", "torch-kokoro", *_CPU_TTS),
    ),
    _preset(
        "cuda",
        ("faster-whisper-cuda-large-v3-turbo", *_CPU_STT),
        ("llama-3.2-3b-bf16-mlx", *_CPU_LLM),
        ("mlx-kokoro", "torch-kokoro", *_CPU_TTS),
    ),
    _preset("cloud", ("openai-transcription",), ("openai-chat",), ("openai-speech",)),
    PresetSpec("null", "energy", "scripted-turn", ("scripted-stt",), ("scripted-llm",), ("scripted-tts",)),
)
