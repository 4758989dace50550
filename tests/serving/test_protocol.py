from typing import Any

import pytest
from openai.types.chat import ChatCompletion, ChatCompletionChunk

from serving import openai_shapes
from serving.errors import InvalidRequestError
from serving.protocol import parse_chat_request

_HELLO = [{"role": "user", "content": "hello"}]


def _parse(**fields: Any) -> Any:
    return parse_chat_request({"model": "m", "messages": _HELLO, **fields})


def test_smallest_request_leaves_everything_to_the_model() -> None:
    request = _parse()
    assert (request.temperature, request.top_p, request.top_k) == (None, None, None)
    assert (request.max_new_tokens, request.stop, request.stream) == (None, (), False)


def test_messages_become_what_templates_expect() -> None:
    request = _parse(
        messages=[
            {"role": "developer", "content": "be short"},
            {
                "role": "user",
                "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}],
                "name": "Ada",
            },
            {"role": "assistant", "content": "c", "refusal": None, "tool_calls": None},
        ]
    )
    assert request.to_template_messages() == [
        {"role": "system", "content": "be short"},
        {"role": "user", "content": "a\nb"},
        {"role": "assistant", "content": "c"},
    ]


def test_the_limit_has_two_names() -> None:
    assert _parse(max_tokens=5).max_new_tokens == 5
    assert _parse(max_completion_tokens=6).max_new_tokens == 6
    assert _parse(max_tokens=7, max_completion_tokens=7).max_new_tokens == 7
    with pytest.raises(InvalidRequestError, match="one setting with two names"):
        _parse(max_tokens=5, max_completion_tokens=6)


def test_stop_is_a_string_or_a_few() -> None:
    assert _parse(stop="\n").stop == ("\n",)
    assert _parse(stop=["a", "b"]).stop == ("a", "b")


def test_what_asks_for_nothing_is_let_through() -> None:
    _parse(n=1, logprobs=False, tools=[], frequency_penalty=0.0, seed=None, top_logprobs=None)
    _parse(response_format={"type": "text"}, user="u", metadata={"k": "v"})


@pytest.mark.parametrize(
    ("fields", "param", "message"),
    [
        ({"n": 2}, "n", "not supported yet"),
        ({"seed": 1}, "seed", "not supported yet"),
        ({"logprobs": True}, "logprobs", "not supported yet"),
        ({"tools": [{"type": "function"}]}, "tools", "not supported yet"),
        ({"response_format": {"type": "json_object"}}, "response_format", "not supported yet"),
        ({"presence_penalty": 0.5}, "presence_penalty", "not supported yet"),
        ({"temprature": 1}, "temprature", "'temprature' is not a known parameter"),
        ({"model": None}, "model", "'model' is required"),
        ({"messages": []}, "messages", "at least 1"),
        ({"messages": _HELLO * 513}, "messages", "at most 512"),
        ({"messages": [{"role": "tool", "content": "x"}]}, "messages[0].role", "'tool'"),
        ({"messages": [{"role": "user"}]}, "messages[0].content", "is required"),
        ({"messages": [{**_HELLO[0], "mood": 1}]}, "messages[0].mood", "not a known parameter"),
        (
            {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}]},
            "messages[0].content",
            "'image_url'",
        ),
        ({"messages": [{"role": "user", "content": "\ud800"}]}, "messages[0].content", ""),
        ({"temperature": 2.5}, "temperature", "found 2.5"),
        ({"temperature": float("nan")}, "temperature", ""),
        ({"top_p": -0.1}, "top_p", "found -0.1"),
        ({"top_k": -1}, "top_k", "found -1"),
        ({"max_tokens": 0}, "max_tokens", "found 0"),
        ({"stop": ["a"] * 5}, "stop", "at most 4"),
        ({"stop": ""}, "stop[0]", "at least 1"),
        ({"stop": ["a" * 257]}, "stop[0]", "at most 256"),
        ({"stream_options": {"include_usage": True}}, None, "together with stream"),
        ({"messages": [{"role": "user", "content": "a" * 600_000}] * 2}, None, "1000000"),
    ],
)
def test_refusals_name_what_is_wrong(
    fields: dict[str, Any], param: str | None, message: str
) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        _parse(**fields)
    assert caught.value.param == param
    assert message in caught.value.message
    assert len(caught.value.message) < 300


def test_body_must_be_an_object() -> None:
    with pytest.raises(InvalidRequestError, match="holds a list"):
        parse_chat_request([])


def test_answers_have_the_shapes_of_the_openai_package() -> None:
    head: dict[str, Any] = {
        "completion_id": "c-1",
        "created": 1,
        "model": "m",
        "system_fingerprint": "fp_0",
    }
    usage = openai_shapes.build_usage(3, 4)
    whole = openai_shapes.build_chat_completion(
        **head, text="hi", finish_reason="stop", usage=usage
    )
    chunks = [
        openai_shapes.build_chat_chunk(**head, delta={"role": "assistant", "content": ""}),
        openai_shapes.build_chat_chunk(**head, delta={"content": "hi"}),
        openai_shapes.build_chat_chunk(**head, delta={}, finish_reason="length"),
        openai_shapes.build_usage_chunk(**head, usage=usage),
    ]
    parsed = ChatCompletion.model_validate(whole, strict=True)
    assert parsed.choices[0].message.content == "hi"
    assert parsed.usage is not None
    assert parsed.usage.total_tokens == 7
    seen = [ChatCompletionChunk.model_validate(chunk, strict=True) for chunk in chunks]
    assert [chunk.choices[0].finish_reason for chunk in seen[:3]] == [None, None, "length"]
    assert seen[3].choices == []
