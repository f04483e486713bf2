"""The letter-to-sound network's mechanics (its weights are tested in tests/models) and the ARPAbet table."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from engines.tts.g2p.letters import MAX_PHONEMES, PHONES, Floats, LetterToSound, lexicon_phonemes

_SIZE = 4


def _weights(biases: dict[str, float]) -> dict[str, Floats]:
    """A network of zeros whose output is fixed by the bias of each phone."""
    weights: dict[str, Floats] = {}
    for side, symbols in (("enc", 29), ("dec", len(PHONES))):
        weights[f"{side}_emb"] = np.zeros((symbols, _SIZE), np.float32)
        for part in ("ih", "hh"):
            weights[f"{side}_w_{part}"] = np.zeros((3 * _SIZE, _SIZE), np.float32)
            weights[f"{side}_b_{part}"] = np.zeros(3 * _SIZE, np.float32)
    weights["fc_w"] = np.zeros((len(PHONES), _SIZE), np.float32)
    weights["fc_b"] = np.array([biases.get(phone, 0.0) for phone in PHONES], np.float32)
    return weights


def test_alphabet_is_the_checkpoints() -> None:
    assert len(PHONES) == 74
    assert PHONES[:6] == ("<pad>", "<unk>", "<s>", "</s>", "AA0", "AA1")
    assert PHONES[-4:] == ("W", "Y", "Z", "ZH")
    assert PHONES[PHONES.index("UW") + 1] == "UW0"


def test_a_network_that_stops_at_once_says_nothing() -> None:
    assert LetterToSound(_weights({"</s>": 1.0})).phonemes("word") == ""


def test_a_network_that_never_stops_is_bounded() -> None:
    assert LetterToSound(_weights({"M": 1.0})).arpabet("m" * 1000) == ["M"] * MAX_PHONEMES


def test_the_letters_read_decide_the_first_phone() -> None:
    # Letter "b" drives the encoder's new gate, which the decoder's state keeps (its update gate held at 1).
    weights = _weights({"K": 0.1})
    weights["enc_emb"][4, 0] = 1.0
    weights["enc_w_ih"][2 * _SIZE, 0] = 5.0
    weights["dec_b_ih"][_SIZE : 2 * _SIZE] = 50.0
    weights["fc_w"][PHONES.index("B"), 0] = 1.0
    network = LetterToSound(weights)
    assert network.arpabet("b")[0] == "B"
    assert network.arpabet("c")[0] == "K"
    assert network.arpabet("é!")[0] == "K"  # no letter it knows: no crash


def test_another_checkpoint_is_refused(tmp_path: Path) -> None:
    weights = _weights({})
    weights["fc_w"] = weights["fc_w"][:-1]
    np.savez(tmp_path / "checkpoint20.npz", allow_pickle=True, **weights)
    with pytest.raises(ValueError, match="73 outputs"):
        LetterToSound.load(tmp_path)


@pytest.mark.parametrize(
    ("arpabet", "phonemes"),
    [
        ("P AH0 T EH1 L", "pətˈɛl"),
        ("AH1 P", "ˈʌp"),
        ("B ER1 D ER0", "bˈɜɹdəɹ"),
        ("S IH1 T IY0", "sˈɪɾi"),
        ("AH0 T AE1 K", "ətˈæk"),
        ("TH AO1 R T ER2", "θˈɔɹtˌɜɹ"),
        ("UW N", "un"),
        ("<unk> M", "m"),
    ],
)
def test_arpabet_in_the_lexicons_alphabet(arpabet: str, phonemes: str) -> None:
    assert lexicon_phonemes(arpabet.split()) == phonemes
