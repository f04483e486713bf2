"""Responses between their wire shape and the session's words."""

from __future__ import annotations

from typing import Any

from gateway.realtime.client_events import ResponseAudio, ResponseParams
from gateway.realtime.errors import Rejected
from gateway.realtime.items import read_item, show_item
from gateway.realtime.session_object import Session, modalities, output_tokens, read_format, refuse_prompt, refuse_tools
from streaming.config import ResponseOptions
from streaming.jobs import Usage
from streaming.notices import Response


def read_options(params: ResponseParams, session: Session) -> ResponseOptions:
    """What one ``response.create`` overrides. Raises :class:`Rejected`."""
    if params.conversation == "none":
        raise Rejected(
            "out_of_band_response_not_supported",
            "responses outside the conversation are not supported yet",
            "response.conversation",
        )
    refuse_tools(params.tools, params.tool_choice, "response")
    refuse_prompt(params.prompt, "response")
    _refuse_other_audio(params.audio, session)
    tokens = params.max_output_tokens
    return ResponseOptions(
        instructions=params.instructions,
        audio_output=None if params.output_modalities is None else params.output_modalities == ["audio"],
        max_output_tokens=None if tokens is None else output_tokens(tokens),
        input_text=_read_input(params),
        metadata=params.metadata,
        tools=params.tool_choice != "none",
    )


def _read_input(params: ResponseParams) -> tuple[tuple[str, str], ...] | None:
    if params.input is None:
        return None
    # These are a prompt, not items of the conversation: their ids are never seen.
    items = [read_item(wire, str, f"response.input[{index}]") for index, wire in enumerate(params.input)]
    return tuple((item.role, item.text or "") for item in items)


def _refuse_other_audio(audio: ResponseAudio | None, session: Session) -> None:
    """Voice and format are the session's; naming the same ones is fine."""
    output = audio.output if audio else None
    if output is None:
        return
    path = "response.audio.output"
    voice = output.voice if isinstance(output.voice, str | None) else output.voice.id
    if voice not in (None, session.voice):
        raise Rejected("response_audio_not_supported", "the voice of a response is the session's", f"{path}.voice")
    if output.format is not None and read_format(output.format, f"{path}.format") is not session.output_format:
        raise Rejected("response_audio_not_supported", "the format of a response is the session's", f"{path}.format")


def show_response(response: Response, session: Session, conversation_id: str) -> dict[str, Any]:
    """The ``response`` of ``response.created`` and ``response.done``; ``usage`` is null until it is done."""
    done = response.status != "in_progress"
    return {
        "object": "realtime.response",
        "id": response.id,
        "status": response.status,
        "status_details": _show_status(response) if done else None,
        "output": [show_item(response.item)] if done and response.item else [],
        "conversation_id": conversation_id,
        "output_modalities": modalities(response.audio_output),
        "audio": {"output": {"format": session.output_format.show(), "voice": session.voice}},
        "metadata": response.metadata,
        "usage": _show_usage(response.usage) if done else None,
    }


def _show_status(response: Response) -> dict[str, Any]:
    details: dict[str, Any] = {"type": response.status}
    if response.status == "failed":
        details["error"] = {
            "type": "server_error",
            "code": response.error_code or "internal_error",
            "message": response.error_message or "the response failed",
        }
    elif response.reason is not None:
        details["reason"] = response.reason
    return details


def _show_usage(usage: Usage) -> dict[str, Any]:
    cached = usage.prompt_tokens - usage.prefilled_tokens
    return {
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
        "input_tokens": usage.prompt_tokens,
        "output_tokens": usage.completion_tokens,
        "input_token_details": {
            "text_tokens": usage.prompt_tokens,
            "audio_tokens": 0,
            "cached_tokens": cached,
            "cached_tokens_details": {"text_tokens": cached, "audio_tokens": 0},
        },
        "output_token_details": {"text_tokens": usage.completion_tokens, "audio_tokens": 0},
    }
