"""The read-back bench: how errors are counted, and the whole way with scripted engines in processes of their own."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import typer
from typer.testing import CliRunner

from engines.bench import readback
from engines.bench.command import add_bench_commands
from engines.bench.readback import Said, Speech, Variant, edits, plain, report


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("It costs $42.95, Sir!", "it costs 42 dollars and 95 cents sir"),
        ("Twenty-five minutes.", "25 minutes"),
        ("I'm sorry", "Im sorry."),
    ],
)
def test_however_an_ear_writes_it(one: str, other: str) -> None:
    assert plain(one) == plain(other) != ""


def test_edits() -> None:
    assert edits("kitten", "sitting") == 3
    assert edits("a b c".split(), "a c".split()) == 1
    assert edits("", "abc") == edits("abc", "") == 3


def test_errors_are_counted_over_all_sentences() -> None:
    said = [Said(text, np.zeros(0, np.int16), 2.0, 0.1, 0.5) for text in ("one two", "three four five six")]
    row = report(Variant("v", "v"), Speech(said, 1.0, 10.0, 0.0), ["one too", "three four five six"])
    assert row["wer"] == pytest.approx(1 / 6, abs=1e-4)
    assert row["cer"] == pytest.approx(1 / (7 + 19), abs=1e-4)
    assert row["real_time_factor"] == 0.25
    assert [one["edits"] for one in row["heard"]] == [1, 0]


def test_variants() -> None:
    assert Variant.parse("torch-kokoro=./k,voice=jf_alpha") == Variant(
        "torch-kokoro=./k,voice=jf_alpha", "torch-kokoro", "./k", "jf_alpha"
    )
    spec = Variant.parse("mlx-kokoro=someone/kokoro-4bit,voice=af_sky").spec("tts")
    assert spec.options["voices"] == ("af_sky",)
    assert str(spec.weights[0]) != str(Variant.parse("mlx-kokoro").spec("tts").weights[0])
    assert Variant.parse("mlx-kokoro,warm=false").spec("tts").options == {"warm": False}
    for wrong in ("=model", "piper,speed", "piper,voice=", "piper,speed=fast"):
        with pytest.raises(ValueError, match=r"piper|no backend|Expecting value"):
            Variant.parse(wrong)


def test_a_folder_goes_by_its_name(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    assert Variant.parse(f"piper={tmp_path / 'mine'},voice=joe").label == "piper=mine,voice=joe"
    assert Variant.parse("mlx-kokoro=someone/kokoro").label == "mlx-kokoro=someone/kokoro"


def invoke(*arguments: str) -> tuple[int, str]:
    app = typer.Typer()
    app.callback()(lambda: None)
    add_bench_commands(app)
    result = CliRunner().invoke(app, ["bench", "tts-readback", *arguments])
    return result.exit_code, result.output


def test_the_whole_way() -> None:
    code, output = invoke("--tts", "scripted-tts", "--stt", "scripted-stt", "--sentences", "2", "--json")
    assert code == 0
    [row] = json.loads(output)["variants"]
    assert row["variant"] == "scripted-tts"
    assert [one["said"] for one in row["heard"]] == list(readback.SENTENCES[:2])
    assert {one["heard"] for one in row["heard"]} == {"hello there"}
    assert row["cer"] > 0
    assert 0 < row["wer"] <= 1


def test_what_cannot_be_had_is_told_beside_the_others(tmp_path: Path) -> None:
    code, output = invoke(
        "--tts", f"piper={tmp_path}", "--tts", "scripted-tts", "--stt", "scripted-stt", "--sentences", "1"
    )
    assert code == 1
    lines = output.splitlines()
    assert "piper" in lines[2]
    assert lines[3].startswith("| scripted-tts | ")


def test_an_engine_that_does_not_take_an_option_is_told() -> None:
    code, output = invoke("--tts", "scripted-tts,pitch=2", "--stt", "scripted-stt", "--sentences", "1", "--json")
    assert code == 1
    assert "pitch" in json.loads(output)["variants"][0]["error"]


def test_unknown_names_are_refused_before_anything_is_spoken() -> None:
    code, output = invoke("--tts", "no-such-voice")
    assert code == 2
    assert "no-such-voice" in output
