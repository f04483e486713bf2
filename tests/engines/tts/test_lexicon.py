"""The packed lexicon finds what the JSON says, and the rest is absent."""

from __future__ import annotations

import json
from pathlib import Path

from engines.tts.g2p.lexicon import Lexicon, LexiconTable, read_entries


def test_table_finds_every_word_and_nothing_else() -> None:
    words = ["'em", "Zed", "apple", "apples", "naïve", "zoo"]
    table = LexiconTable((word, {"DEFAULT": f"p{index}"}) for index, word in enumerate(words))
    assert [table.get(word) for word in words] == [{"DEFAULT": f"p{index}"} for index in range(len(words))]
    assert [table.get(word) for word in ("", "appl", "applet", "zed", "zz")] == [None] * 5
    assert len(table) == len(words)


def test_order_of_the_file_does_not_matter() -> None:
    table = LexiconTable([("b", {"DEFAULT": "2"}), ("a'b", {"DEFAULT": "1"}), ("a", {"DEFAULT": "0"})])
    assert [table.get(word) for word in ("a", "a'b", "b")] == [{"DEFAULT": "0"}, {"DEFAULT": "1"}, {"DEFAULT": "2"}]


def test_readings_by_tag_survive_packing() -> None:
    readings = {"DEFAULT": "ɹˈid", "VBD": "ɹˈɛd", "None": "x"}
    assert LexiconTable([("read", readings)]).get("read") == readings


def test_empty_table() -> None:
    assert LexiconTable([]).get("a") is None


def test_file_is_read_pair_by_pair_in_any_layout(tmp_path: Path) -> None:
    content = {'a"b': "x", "US": {"DEFAULT": "ˌʌs", "NOUN": None}, "zoo": "zˈu"}
    expected = [('a"b', {"DEFAULT": "x"}), ("US", {"DEFAULT": "ˌʌs"}), ("zoo", {"DEFAULT": "zˈu"})]
    for indent in (None, 2):
        path = tmp_path / f"{indent}.json"
        path.write_text(json.dumps(content, indent=indent, ensure_ascii=False), encoding="utf-8")
        assert list(read_entries(path)) == expected


def test_gold_comes_before_silver(tmp_path: Path) -> None:
    (tmp_path / "us_gold.json").write_text('{"one": "gold"}', encoding="utf-8")
    (tmp_path / "us_silver.json").write_text('{"one": "silver", "two": "silver"}', encoding="utf-8")
    lexicon = Lexicon.load(tmp_path)
    assert lexicon.get("one") == {"DEFAULT": "gold"}
    assert lexicon.get("two") == {"DEFAULT": "silver"}
    assert lexicon.get("three") is None
