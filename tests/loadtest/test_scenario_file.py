"""Every mistake in a scenario has a place."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from loadtest.scenario import Scenario, load_scenario
from loadtest.scenario_file import MAX_FILE_BYTES, ScenarioError, find_scenario, library_names, read_scenario_file


def written(folder: Path, text: str) -> str:
    path = folder / "mine.yaml"
    path.write_text(text, encoding="utf-8")
    return str(path)


def mistakes(folder: Path, text: str) -> list[str]:
    with pytest.raises(ScenarioError) as caught:
        load_scenario(written(folder, text))
    return str(caught.value).splitlines()


HEAD = "name: mine\nabout: mine\n"


def test_a_scenario_is_read_from_a_file(tmp_path: Path) -> None:
    scenario = load_scenario(written(tmp_path, HEAD + "steps:\n- wait_agent\n- say: Stop.\n- vanish:\n"))
    assert (scenario.name, scenario.length_s) == ("mine", 30)
    assert scenario.steps is not None
    assert [type(step).__name__ for step in scenario.steps] == ["WaitStep", "SayStep", "VanishStep"]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("steps:\n- sey: hi\n", "mine.yaml:4: steps[0]: a step is one of say, press"),
        ("steps:\n- say: hi\n  press: '1'\n", "mine.yaml:4: steps[0]: a step is one of"),
        ("steps:\n- say: hi\nnose: 1\n", "mine.yaml:5: nose: no such key"),
        ("steps:\n- say:\n", "mine.yaml:4: steps[0].say.text: is missing"),
        ("steps:\n- say: ''\n", "mine.yaml:4: steps[0].say.text[0]: String should have at least 1"),
        ("steps:\n- press: 12\n", "mine.yaml:4: steps[0].press: keys are words: put them into quotes"),
        ("steps:\n- press: 1x\n", "mine.yaml:4: steps[0].press.keys: keys are 0 to 9"),
        ("steps:\n- pause_s: -1\n", "mine.yaml:4: steps[0].pause_s[0]: Input should be greater"),
        ("steps:\n- pause_s: [3, 1]\n", "mine.yaml:4: steps[0].pause_s: the shorter of two lengths"),
        ("steps:\n- interrupt: {after_ms: 1}\n", "mine.yaml:4: steps[0].interrupt: an interruption is spoken"),
        (
            "steps:\n- repeat:\n    steps:\n    - hold_s: 1\n    - interrupt:\n        say: ho\n        after_ms: x\n",
            "mine.yaml:9: steps[0].repeat.steps[1].interrupt.after_ms: Input should be a valid number",
        ),
        ("steps: []\n", "mine.yaml:3: steps: Value should have at least 1 item"),
        ("", "mine.yaml:1: the scenario: a scenario has steps, or callers"),
        ("steps: [vanish]\nvoices: [tom]\n", "mine.yaml:4: voices: no voice 'tom' speaks the shipped lines"),
        ("steps: [vanish]\nvoices: ['tom:x']\n", "mine.yaml:4: voices: not a voice: 'tom:x'"),
        ("steps: [vanish]\nechoes: 1\necho: {loss_db: 20, delay_ms: 1}\n", "mine.yaml:4: echoes: no such key"),
        ("steps: [vanish]\necho: {loss_db: 20, delay_ms: 1}\n", "mine.yaml:4: echo.delay_ms: Input should be"),
        ("steps: [vanish]\nlength_s: .inf\n", "mine.yaml:4: length_s: Input should be a valid number"),
        ("steps: [vanish]\ntransports: [fax]\n", "mine.yaml:4: transports[0]: Input should be 'websocket'"),
        ("steps: [{press: '1'}]\n", "mine.yaml:1: the scenario: keys are pressed on phones alone"),
    ],
)
def test_mistakes_are_told_with_their_place(tmp_path: Path, text: str, expected: str) -> None:
    assert mistakes(tmp_path, HEAD + text)[0].startswith(expected)


def test_all_mistakes_are_told_at_once(tmp_path: Path) -> None:
    told = mistakes(tmp_path, HEAD + "steps:\n- sey: hi\nlength_s: 0\n")
    assert [line.split(": ")[1] for line in told] == ["steps[0]", "length_s"]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("name: a\nname: b\n", "mine.yaml:2: 'name' is there twice"),
        ("name: [\n", "mine.yaml:2: "),
        ("a: *b\n", "mine.yaml:1: found undefined alias 'b'"),
        ("a: !!python/object:os.system x\n", "mine.yaml:1: could not determine a constructor"),
        ("- a\n", "mine.yaml:1: the scenario: Input should be a valid dictionary"),
        ("", "mine.yaml:1: the scenario: Input should be a valid dictionary"),
        ("[" * 5_000, "mine.yaml: "),
        ("name: a\n[b]: c\n", "mine.yaml:2: a key is one word"),
        ("seconds: " + "9" * 5_000, "mine.yaml: Exceeds the limit"),
    ],
)
def test_what_is_no_scenario_is_refused(tmp_path: Path, text: str, expected: str) -> None:
    assert mistakes(tmp_path, text)[0].startswith(expected)


def test_files_that_cannot_be_read_are_named(tmp_path: Path) -> None:
    with pytest.raises(ScenarioError, match=r"none\.yaml: No such file"):
        load_scenario(str(tmp_path / "none.yaml"))
    (tmp_path / "latin.yaml").write_bytes(b"name: \xe9")
    with pytest.raises(ScenarioError, match=r"latin\.yaml: not UTF-8"):
        load_scenario(str(tmp_path / "latin.yaml"))
    with pytest.raises(ScenarioError, match="larger than"):
        load_scenario(written(tmp_path, "#" * (MAX_FILE_BYTES + 1)))


def test_what_is_no_file_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.yaml")
    (tmp_path / "endless.yaml").symlink_to("/dev/zero")
    (tmp_path / "folder.yaml").mkdir()
    for name in ("pipe.yaml", "endless.yaml", "folder.yaml"):
        with pytest.raises(ScenarioError, match="not a file"):
            read_scenario_file(tmp_path / name)


def test_words_are_words(tmp_path: Path) -> None:
    file = read_scenario_file(Path(written(tmp_path, "[yes, on, 12:30, 010, 2026-01-01, true, 1.5, ~]")))
    assert file.data == ["yes", "on", "12:30", 10, "2026-01-01", True, 1.5, None]


def test_an_anchor_may_be_used_again(tmp_path: Path) -> None:
    scenario = load_scenario(
        written(tmp_path, HEAD + "callers:\n- {name: a, steps: &same [vanish]}\n- {name: b, share: 2, steps: *same}\n")
    )
    assert [kind.steps for kind in scenario.kinds] == [scenario.kinds[0].steps] * 2


def test_a_scenario_is_found_by_its_name_or_as_a_file(tmp_path: Path) -> None:
    assert find_scenario("talk").stem == "talk"
    assert find_scenario("./talk").suffix == ""
    assert find_scenario("talk.yml") == Path("talk.yml")
    with pytest.raises(ScenarioError, match="one of burst, churn"):
        find_scenario("none")


@pytest.mark.parametrize("name", library_names())
def test_the_library_is_named_as_its_files(name: str) -> None:
    scenario = load_scenario(name)
    assert isinstance(scenario, Scenario)
    assert scenario.name == name
    assert scenario.about.endswith(".")


def test_the_library_is_whole() -> None:
    wanted = {"smoke", "talk", "interrupters", "noisy", "churn", "parked", "burst", "soak", "ivr"}
    assert wanted <= set(library_names())


def test_the_documented_example_is_a_scenario(tmp_path: Path) -> None:
    page = (Path(__file__).parents[2] / "docs" / "loadtest" / "scenarios.md").read_text(encoding="utf-8")
    example, network = [part.split("```")[0] for part in page.split("```yaml\n")[1:3]]
    assert load_scenario(written(tmp_path, example)).name == "booking"
    assert load_scenario(written(tmp_path, HEAD + "steps: [vanish]\n" + network)).packets() is not None
    for name in library_names():
        assert f"| `{name}` |" in page
