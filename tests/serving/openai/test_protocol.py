from typing import Any

import pytest

from serving.errors import InvalidRequestError
from serving.openai.chat import parse_chat_request
from serving.openai.completion import parse_completion_request

_HELLO = [{"role": "user", "content": "hello"}]


def _parse(**fields: Any) -> Any:
    return parse_chat_request({"model": "m", "messages": _HELLO, **fields})


def test_minimal_request_leaves_settings_unset() -> None:
    request = _parse()
    assert (request.temperature, request.top_p, request.top_k) == (None, None, None)
    assert (request.max_new_tokens, request.stop, request.stream) == (None, (), False)


def test_messages_are_converted_for_templates() -> None:
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


def test_max_tokens_and_max_completion_tokens_are_same_setting() -> None:
    assert _parse(max_tokens=5).max_new_tokens == 5
    assert _parse(max_completion_tokens=6).max_new_tokens == 6
    assert _parse(max_tokens=7, max_completion_tokens=7).max_new_tokens == 7
    with pytest.raises(
        InvalidRequestError,
        match=r"^max_tokens \(5\) and max_completion_tokens \(6\) are one setting with two names; ",
    ):
        _parse(max_tokens=5, max_completion_tokens=6)


def test_stop_is_string_or_list() -> None:
    assert _parse(stop="\n").stop == ("\n",)
    assert _parse(stop=["a", "b"]).stop == ("a", "b")


def test_assistant_message_without_content_becomes_empty() -> None:
    request = _parse(messages=[*_HELLO, {"role": "assistant"}, *_HELLO])
    assert request.to_template_messages()[1] == {"role": "assistant", "content": ""}


def test_unsupported_parameters_with_neutral_values_are_accepted() -> None:
    _parse(tools=[], tool_choice="auto")
    _parse(n=1, logprobs=False, tools=[], frequency_penalty=0.0, seed=None, top_logprobs=None)
    _parse(response_format={"type": "text"}, user="u", metadata={"k": "v"})


@pytest.mark.parametrize(
    ("fields", "param", "message"),
    [
        ({"n": 17}, "n", "found 17"),
        ({"n": 0}, "n", "found 0"),
        ({"seed": 2**63}, "seed", "found 9223372036854775808"),
        ({"seed": 1.5}, "seed", "found 1.5"),
        ({"logprobs": 3}, "logprobs", "found 3"),
        ({"n": True}, "n", "'n': found a boolean True"),
        ({"stream": "yes"}, "stream", "'stream': expected true or false, found 'yes'"),
        ({"top_logprobs": 3}, None, "together with logprobs"),
        ({"logprobs": True, "top_logprobs": 21}, "top_logprobs", "found 21"),
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
def test_invalid_chat_request_error_names_parameter(
    fields: dict[str, Any], param: str | None, message: str
) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        _parse(**fields)
    assert caught.value.param == param
    assert message in caught.value.message
    assert len(caught.value.message) < 300


def test_body_that_is_no_object_is_refused() -> None:
    with pytest.raises(
        InvalidRequestError, match="^the body holds a list; expected a JSON object$"
    ):
        parse_chat_request([])


def complete(**fields: Any) -> Any:
    return parse_completion_request({"model": "m", **fields})


def test_prompt_is_one_or_several_texts_or_token_lists() -> None:
    assert complete(prompt="a").prompt == ("a",)
    assert complete(prompt=["a", "b"]).prompt == ("a", "b")
    assert complete(prompt=[1, 2]).prompt == ((1, 2),)
    assert complete(prompt=[[1, 2], [3]]).prompt == ((1, 2), (3,))
    assert complete(prompt="a").max_new_tokens == 16
    assert complete(prompt="a", max_tokens=0, echo=True, logprobs=0).num_top_logprobs == 0
    assert complete(prompt="a", best_of=2, n=2, suffix=None, presence_penalty=0).n == 2


@pytest.mark.parametrize(
    ("fields", "param", "message"),
    [
        ({}, "prompt", "is required"),
        ({"prompt": []}, "prompt", "at least 1"),
        ({"prompt": [True]}, "prompt", "found True among them"),
        ({"prompt": [-1]}, "prompt", "found -1 among them"),
        ({"prompt": [[]]}, "prompt", "found [] among them"),
        ({"prompt": ["a", [1, "b"]]}, "prompt", "found 'b' among them"),
        ({"prompt": {"a": 1}}, "prompt", ""),
        ({"prompt": ["a"] * 129}, "prompt", "at most 128"),
        ({"prompt": ["a" * 600_000] * 2}, None, "1000000"),
        ({"prompt": "a", "max_tokens": 0}, None, "nothing to answer"),
        ({"prompt": "a", "best_of": 3}, None, "best_of (3) must be n (1)"),
        ({"prompt": "a", "echo": True, "stream": True}, None, "echo"),
        ({"prompt": "a", "suffix": "b"}, "suffix", "not supported yet"),
        ({"prompt": "a", "messages": []}, "messages", "not a known parameter"),
    ],
)
def test_invalid_completion_request_error_names_parameter(
    fields: dict[str, Any], param: str | None, message: str
) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        complete(**fields)
    assert (caught.value.param or None) == param
    assert message in caught.value.message
    assert len(caught.value.message) < 300


def test_begun_answer_can_be_continued() -> None:
    begun = [*_HELLO, {"role": "assistant", "content": "Hello "}]
    continued = {"continue_final_message": True, "add_generation_prompt": False}
    assert _parse(messages=begun, **continued).continue_final_message
    assert not _parse(messages=begun).continue_final_message


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"continue_final_message": True}, "only allowed together"),
        ({"add_generation_prompt": False}, "only allowed together"),
        (
            {"continue_final_message": True, "add_generation_prompt": False},
            "found one of the role 'user' with 5 characters",
        ),
    ],
)
def test_continuation_without_begun_answer_is_refused(fields: Any, message: str) -> None:
    with pytest.raises(InvalidRequestError, match=message):
        _parse(**fields)
