"""Streamed chunks, compared with the types of the openai package."""

from typing import Any

from openai.types import Completion
from openai.types.chat import ChatCompletionChunk

from serving.openai.chat import parse_chat_request
from serving.openai.chunks import ChatChunks, CompletionChunks
from serving.openai.completion import parse_completion_request
from serving.openai.responses import AnswerHead
from serving.wire import Piece, TokenLogprob, TokenText

HEAD = AnswerHead("c-1", 1, "m", "fp_0")
STREAM = {"stream": True, "stream_options": {"include_usage": True}}
HI = TokenText("hi", (104, 105))
TOKEN = TokenLogprob(HI, -0.5, ((HI, -0.5), (TokenText("\ufffd", None), -1.0)))
PIECE = Piece(0, "hi", "stop", 3, 4, (TOKEN,))


def make_chat_chunks(**fields: Any) -> ChatChunks:
    messages = [{"role": "user", "content": "fox"}]
    return ChatChunks(parse_chat_request({"model": "m", "messages": messages, **fields}), HEAD)


def test_chat_chunks_match_openai_types() -> None:
    chunks = make_chat_chunks(logprobs=True, top_logprobs=2, **STREAM)
    built = [*chunks.build([PIECE]), *chunks.finish()]
    seen = [ChatCompletionChunk.model_validate(chunk, strict=True) for chunk in built]
    assert [chunk.choices[0].finish_reason for chunk in seen[:3]] == [None, None, "stop"]
    assert seen[0].choices[0].delta.role == "assistant"
    assert seen[3].choices == []
    assert seen[3].usage is not None
    assert seen[3].usage.total_tokens == 7


def test_first_chat_chunk_of_each_choice_has_role() -> None:
    chunks = make_chat_chunks(n=2, stream=True)
    first = chunks.build([Piece(1, "a")])
    assert [chunk["choices"][0]["index"] for chunk in first] == [0, 1, 1]
    second = chunks.build([Piece(0, "b"), Piece(1, "", "length", 3, 1)])
    assert [chunk["choices"][0]["delta"] for chunk in second] == [{"content": "b"}, {}]
    assert chunks.finish() == []


def test_prompt_tokens_of_several_choices_are_counted_once() -> None:
    chunks = make_chat_chunks(n=2, **STREAM)
    chunks.build([Piece(0, "a", "stop", 3, 4), Piece(1, "b", "stop", 3, 5)])
    assert chunks.finish()[0]["usage"] == {
        "prompt_tokens": 3,
        "completion_tokens": 9,
        "total_tokens": 12,
    }


def test_completion_chunks_match_openai_types() -> None:
    body = {"model": "m", "prompt": ["a", "b"], "logprobs": 2, **STREAM}
    chunks = CompletionChunks(parse_completion_request(body), HEAD)
    (opening, other) = chunks.build([Piece(0, "12345"), Piece(1, "x", "stop", 2, 1)])
    assert (opening["choices"][0]["index"], other["choices"][0]["index"]) == (0, 1)
    (chunk,) = chunks.build([PIECE])
    assert chunk["choices"][0]["logprobs"]["text_offset"] == [5]
    Completion.model_validate(chunk, strict=True)
    (last,) = chunks.finish()
    Completion.model_validate(last, strict=True)
    assert (last["choices"], last["usage"]["prompt_tokens"]) == ([], 5)
