"""SmolLM2's weights on CTranslate2: prompt ids in, reply ids out, on the calling thread."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from engines.api import EngineError
from engines.llm.chatml import END, START, ChatMl
from engines.llm.text_model import Offer, Wanted

REPETITION_PENALTY = 1.1
"""Without it a model of this size says one sentence over and over."""

_SAMPLED_FROM = 40
_END_OF_TEXT = "<|endoftext|>"


class CTranslate2Model:
    """The weights. Up to ``workers`` threads may generate at once; they share the weights."""

    def __init__(self, model_dir: Path, workers: int) -> None:
        import ctranslate2
        from tokenizers import Tokenizer

        try:
            self._tokenizer: Any = Tokenizer.from_file(str(model_dir / "tokenizer.json"))
            self._generator: Any = ctranslate2.Generator(
                str(model_dir), device="cpu", compute_type="int8", inter_threads=workers, intra_threads=1
            )
        except Exception as error:  # the extensions raise bare types
            raise EngineError("bad_weights", f"{model_dir} holds no language model: {error}") from error
        # A caller who says "<|im_end|>" says seven characters, and ends nothing.
        self._tokenizer.encode_special_tokens = True
        self._vocabulary = [self._tokenizer.id_to_token(i) for i in range(self._tokenizer.get_vocab_size())]
        self.end_ids = frozenset((self._id(END), self._id(_END_OF_TEXT)))
        self.chat = ChatMl(self._encode, self._id(START), self._id(END))

    def decode(self, ids: list[int]) -> str:
        text: str = self._tokenizer.decode(ids, skip_special_tokens=True)
        return text

    def generate(self, wanted: Wanted, slot: Offer) -> None:
        failure: Exception | None = None

        def step(result: Any) -> bool:
            nonlocal failure
            # An exception must not cross into the C++ thread that calls this.
            try:
                last = wanted.on_token(result.token_id)
            except Exception as error:  # noqa: BLE001
                failure = error
                return True
            return last or not slot.yield_if_needed() or wanted.urgency() is None

        greedy = wanted.temperature <= 0
        try:
            self._generator.generate_batch(
                [[self._vocabulary[i] for i in wanted.prompt]],
                max_length=wanted.max_tokens,
                include_prompt_in_result=False,
                end_token=[END, _END_OF_TEXT],
                repetition_penalty=REPETITION_PENALTY,
                sampling_topk=1 if greedy else _SAMPLED_FROM,
                sampling_temperature=1.0 if greedy else wanted.temperature,
                callback=step,
            )
        except Exception as error:  # noqa: BLE001 (it is for whoever wanted the reply)
            failure = error
        wanted.on_end(len(wanted.prompt), failure)

    def reorder(self) -> None:
        """Each reply has a slot of its own."""

    def close(self) -> None:
        self._generator.unload_model()
        del self._generator

    def _id(self, token: str) -> int:
        found: int | None = self._tokenizer.token_to_id(token)
        if found is None:
            raise EngineError("bad_weights", f"the tokenizer has no token {token}")
        return found

    def _encode(self, text: str) -> list[int]:
        ids: list[int] = self._tokenizer.encode(text, add_special_tokens=False).ids
        return ids
