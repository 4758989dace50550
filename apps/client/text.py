"""Requests for generated text, and for classifications of texts and images."""

import json
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from typing import NamedTuple, TypedDict

from apps.client.connection import ApiConnection, ApiRequest, Upload
from apps.client.errors import AnswerFailedError, UnexpectedResponseError, read_error_body
from apps.client.resources import Piece
from apps.sse import DONE, read_data

_CHAT_PATH = "/v1/chat/completions"
_CLASSIFY_PATH = "/v1/classify"


class Message(TypedDict):
    """A message of a conversation."""

    role: str
    content: str


class Sampling(NamedTuple):
    """Settings of the generation; None is the default of the API."""

    temperature: float | None = None
    max_tokens: int | None = None
    top_p: float | None = None
    seed: int | None = None
    stop: tuple[str, ...] | None = None


DEFAULT_SAMPLING = Sampling()


class TextClient:
    """Generates answers to chats, and classifies texts and images."""

    def __init__(self, connection: ApiConnection) -> None:
        self._connection = connection

    async def complete_chat(
        self, model: str, messages: Sequence[Message], sampling: Sampling = DEFAULT_SAMPLING
    ) -> Mapping[str, object]:
        """Return the whole response to a chat."""
        body = _build_body(model, messages, sampling)
        request = ApiRequest("POST", _CHAT_PATH, json=body, kind="generation")
        return await self._connection.read_object(request)

    async def classify(
        self, model: str, inputs: Sequence[str] | Sequence[Sequence[str]], *, truncate: bool
    ) -> Mapping[str, object]:
        """Return the labels of texts, or of pairs of texts."""
        body = {"model": model, "input": inputs, "truncate": truncate}
        request = ApiRequest("POST", _CLASSIFY_PATH, json=body, kind="generation")
        return await self._connection.read_object(request)

    async def classify_images(self, model: str, images: Sequence[Upload]) -> Mapping[str, object]:
        """Return the labels of images."""
        form = {"model": model}
        request = ApiRequest("POST", _CLASSIFY_PATH, form=form, images=images, kind="generation")
        return await self._connection.read_object(request)

    async def stream_chat(
        self,
        model: str,
        messages: Sequence[Message],
        sampling: Sampling = DEFAULT_SAMPLING,
        *,
        wants_usage: bool = False,
        continues: bool = False,
    ) -> AsyncGenerator[Piece, None]:
        """Stream the answer to a chat; closing the stream early stops the generation.

        With `wants_usage`, the last piece has the number of tokens. With `continues`, the last
        message is an answer, and its continuation is streamed.
        """
        body = {**_build_body(model, messages, sampling), "stream": True}
        if wants_usage:
            body["stream_options"] = {"include_usage": True}
        if continues:
            body |= {"continue_final_message": True, "add_generation_prompt": False}
        request = ApiRequest("POST", _CHAT_PATH, json=body, kind="generation")
        async with self._connection.stream(request) as response:
            origin = _read_origin(response.headers)
            async with aclosing(read_data(response.aiter_bytes())) as events:
                async for data in events:
                    if data != DONE:
                        yield _read_piece(data, origin)


def _build_body(model: str, messages: Sequence[Message], sampling: Sampling) -> dict[str, object]:
    settings = {name: value for name, value in sampling._asdict().items() if value is not None}
    return {"model": model, "messages": list(messages), **settings}


def _read_origin(headers: Mapping[str, str]) -> Piece:
    """Return a piece without text that names the model, the run and the checkpoint."""
    return Piece(
        model=headers.get("x-model-id"),
        run_id=headers.get("x-run-id"),
        checkpoint=headers.get("x-checkpoint"),
    )


def _read_piece(data: bytes, origin: Piece) -> Piece:
    """Parse a chunk, whose fields may be absent; raises `AnswerFailedError` for an error."""
    try:
        chunk = json.loads(data.decode(errors="replace"))
        message, _ = read_error_body(chunk)
        if message is not None or "error" in chunk:
            raise AnswerFailedError(message or "the answer broke off")
        choices = chunk.get("choices") or [{}]
        usage = chunk.get("usage") or {}
        return Piece(
            text=(choices[0].get("delta") or {}).get("content") or "",
            model=origin.model or chunk.get("model"),
            run_id=origin.run_id,
            checkpoint=origin.checkpoint,
            num_tokens=usage.get("completion_tokens"),
            finish_reason=choices[0].get("finish_reason"),
        )
    except (ValueError, TypeError, AttributeError, LookupError) as exc:
        raise UnexpectedResponseError(f"a part of the answer is not valid: {exc}") from exc
