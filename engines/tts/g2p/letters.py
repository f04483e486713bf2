"""Letter-to-sound for words in no lexicon: a small GRU encoder-decoder over letters, in NumPy.

The weights are those of g2p_en (Park & Kim, Apache-2.0; trained on the CMU pronouncing dictionary, so it knows the
sound of American names). Letters in, ARPAbet out, greedy; about 2 ms a word.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float32]

MAX_LETTERS = 32
MAX_PHONEMES = 24

_GRAPHEMES = {letter: index for index, letter in enumerate("abcdefghijklmnopqrstuvwxyz", start=3)}
_END_OF_WORD = 2
_START, _STOP = 2, 3

_CONSONANTS = {
    "B": "b", "CH": "ʧ", "D": "d", "DH": "ð", "F": "f", "G": "ɡ", "HH": "h", "JH": "ʤ", "K": "k", "L": "l", "M": "m",
    "N": "n", "NG": "ŋ", "P": "p", "R": "ɹ", "S": "s", "SH": "ʃ", "T": "t", "TH": "θ", "V": "v", "W": "w", "Y": "j",
    "Z": "z", "ZH": "ʒ",
}  # fmt: skip
_VOWELS = {
    "AA": "ɑ", "AE": "æ", "AH": "ʌ", "AO": "ɔ", "AW": "W", "AY": "I", "EH": "ɛ", "ER": "ɜɹ", "EY": "A", "IH": "ɪ",
    "IY": "i", "OW": "O", "OY": "Y", "UH": "ʊ", "UW": "u",
}  # fmt: skip
_REDUCED = {"AH": "ə", "ER": "əɹ"}
_STRESS = {"0": "", "1": "ˈ", "2": "ˌ"}


def _alphabet() -> tuple[str, ...]:
    """The network's output classes, in order: four marks, then ARPAbet, each vowel with its three stresses."""
    names = sorted([*_CONSONANTS, *_VOWELS])
    phones = [f"{name}{stress}" for name in names for stress in ("012" if name in _VOWELS else ("",))]
    phones.insert(phones.index("UW0"), "UW")  # the training data had one vowel without a stress
    return ("<pad>", "<unk>", "<s>", "</s>", *phones)


PHONES = _alphabet()


class LetterToSound:
    """``weights`` by their names in the checkpoint. GRU gates are stacked reset, update, new (PyTorch's order)."""

    def __init__(self, weights: dict[str, Floats]) -> None:
        if weights["fc_w"].shape[0] != len(PHONES):
            raise ValueError(f"the network has {weights['fc_w'].shape[0]} outputs, not {len(PHONES)}")
        self._letters = weights["enc_emb"]
        self._phones = weights["dec_emb"]
        self._encoder = _Gru(weights, "enc")
        self._decoder = _Gru(weights, "dec")
        self._out = weights["fc_w"], weights["fc_b"]

    @classmethod
    def load(cls, folder: Path) -> LetterToSound:
        """Read ``checkpoint20.npz``. Raises OSError, KeyError or ValueError if it is not that file."""
        with np.load(folder / "checkpoint20.npz", allow_pickle=False) as archive:
            return cls({name: archive[name] for name in archive.files})

    def arpabet(self, word: str) -> list[str]:
        """The phones of a word of letters a-z, such as ``["S", "IH1", "P"]``."""
        state = np.zeros(self._encoder.size, np.float32)
        for letter in word.lower()[:MAX_LETTERS]:
            state = self._encoder.step(self._letters[_GRAPHEMES.get(letter, 1)], state)
        state = self._encoder.step(self._letters[_END_OF_WORD], state)
        weight, bias = self._out
        phones: list[str] = []
        last = _START
        while len(phones) < MAX_PHONEMES:
            state = self._decoder.step(self._phones[last], state)
            last = int(np.argmax(weight @ state + bias))
            if last == _STOP:
                break
            phones.append(PHONES[last])
        return phones

    def phonemes(self, word: str) -> str:
        """The same in the lexicon's alphabet."""
        return lexicon_phonemes(self.arpabet(word))


class _Gru:
    def __init__(self, weights: dict[str, Floats], side: str) -> None:
        self._w_in, self._b_in = weights[f"{side}_w_ih"], weights[f"{side}_b_ih"]
        self._w_state, self._b_state = weights[f"{side}_w_hh"], weights[f"{side}_b_hh"]
        self.size: int = self._w_state.shape[1]

    def step(self, x: Floats, state: Floats) -> Floats:
        reset_in, update_in, new_in = np.split(self._w_in @ x + self._b_in, 3)
        reset_state, update_state, new_state = np.split(self._w_state @ state + self._b_state, 3)
        reset = _sigmoid(reset_in + reset_state)
        update = _sigmoid(update_in + update_state)
        new = np.tanh(new_in + reset * new_state)
        result: Floats = (1 - update) * new + update * state
        return result


def _sigmoid(x: Floats) -> Any:
    return 0.5 * np.tanh(0.5 * x) + 0.5  # unlike 1/(1+exp(-x)), never overflows


def lexicon_phonemes(phones: list[str]) -> str:
    """ARPAbet to the lexicon's alphabet: stress before the vowel, unstressed AH and ER reduced, /t/ flapped between
    a vowel and an unstressed vowel as the lexicon writes it."""
    out: list[str] = []
    for index, phone in enumerate(phones):
        name, stress = phone.rstrip("012"), phone[-1] if phone[-1] in "012" else ""
        if name in _VOWELS:
            vowel = _REDUCED.get(name, _VOWELS[name]) if stress == "0" else _VOWELS[name]
            out.append(_STRESS.get(stress, "") + vowel)
        elif name == "T" and 0 < index < len(phones) - 1 and _is_flap(phones[index - 1], phones[index + 1]):
            out.append("ɾ")
        else:
            out.append(_CONSONANTS.get(name, ""))
    return "".join(out)


def _is_flap(before: str, after: str) -> bool:
    return (before.rstrip("012") in _VOWELS or before == "R") and after.endswith("0")
