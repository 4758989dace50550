"""Whole responses, compared with the types of the openai package."""

from openai.types import Completion
from openai.types.chat import ChatCompletion

from serving.openai.responses import (
    AnswerHead,
    build_chat_completion,
    build_completion,
    build_usage,
)
from serving.wire import Piece, TokenLogprob, TokenText

HEAD = AnswerHead("c-1", 1, "m", "fp_0")
USAGE = build_usage(3, 4)
HI = TokenText("hi", (104, 105))
TOKEN = TokenLogprob(HI, -0.5, ((HI, -0.5), (TokenText("\ufffd", None), -1.0)))
PIECE = Piece(0, "hi", "stop", tokens=(TOKEN,))


def test_chat_completion_matches_openai_types() -> None:
    whole = build_chat_completion(HEAD, [PIECE], USAGE, has_logprobs=True)
    parsed = ChatCompletion.model_validate(whole, strict=True)
    assert parsed.choices[0].message.content == "hi"
    assert parsed.usage is not None
    assert parsed.usage.total_tokens == 7
    logprobs = parsed.choices[0].logprobs
    assert logprobs is not None
    assert logprobs.content is not None
    assert logprobs.content[0].bytes == [104, 105]
    assert [top.logprob for top in logprobs.content[0].top_logprobs] == [-0.5, -1.0]


def test_completion_matches_openai_types() -> None:
    first = TokenLogprob(HI, None)
    choice = PIECE._replace(text="hihi", tokens=(first, TOKEN))
    whole = build_completion(HEAD, [choice], USAGE, has_logprobs=True)
    # The package's types exclude None, but the API returns it for the first token of a prompt, and
    # the client does not validate.
    logprobs = Completion.construct(**whole).choices[0].logprobs
    assert logprobs is not None
    assert logprobs.tokens == ["hi", "hi"]
    assert logprobs.token_logprobs == [None, -0.5]
    assert logprobs.top_logprobs == [None, {"hi": -0.5, "\ufffd": -1.0}]
    assert logprobs.text_offset == [0, 2]
    plain = build_completion(HEAD, [PIECE], USAGE, has_logprobs=False)
    assert plain["choices"][0]["logprobs"] is None
