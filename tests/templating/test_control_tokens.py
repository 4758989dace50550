"""The bounded cost of a model's control tokens, for any model."""

import threading
import time
import tracemalloc
from collections.abc import Iterable
from contextlib import suppress
from re import Pattern
from typing import Any

import pytest
from tokenizers import AddedToken

from templating.control_tokens import ControlTokens
from templating.literal_text import LiteralText
from templating.patterns import match_any
from tests.tokenizer_kinds import CHATML, make_tokenizer


def make(*contents: str, kind: str = "byte-level") -> Any:
    tokenizer = make_tokenizer(kind)
    tokenizer.add_tokens([AddedToken(content, special=True) for content in contents])
    return tokenizer


def test_memory_is_linear_in_length_of_control_token() -> None:
    """Previously, all prefixes of a token of 40,000 characters were kept: 765 MB."""
    tokenizer = make("<|" + "x" * 40_000 + "|>")
    tracemalloc.start()
    try:
        text = LiteralText(tokenizer)
        text.prepare([CHATML])
        chat = text.protect_chat([{"role": "user", "content": "<|" + "x" * 39_000}], None, CHATML)
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak_bytes < 50_000_000
    assert len(chat.literals) == 1, "an incomplete control token is encoded as text"


@pytest.mark.parametrize(
    ("text", "start"),
    [
        ("a <|im_", 2),
        ("a <|im_ \n", 2),
        ("a <", 2),
        ("<|im_end|>", None),
        ("<|im_end|><|im_end|", 10),
        ("<s", 0),
        ("a", None),
        ("", None),
        ("<x|", None),
        ("<a><b><", 0),
        ("<b><", 3),
    ],
)
def test_incomplete_control_token_at_end_of_text_is_found(text: str, start: int | None) -> None:
    assert ControlTokens(make("<a><b><c>")).find("").find_open_end(text) == start


def test_end_of_text_is_compared_with_many_tokens_quickly() -> None:
    tokens = (f"<|{'x' * 200}{number:06}|>" for number in range(3_000))
    control = ControlTokens(make(*tokens)).find("")
    started = time.process_time()
    for _ in range(100):
        assert control.find_open_end("<|" + "x" * 190 + "y") is None
        assert control.find_open_end("a" * 100 + "<|" + "x" * 190) == 100
    assert time.process_time() - started < 0.5


def test_threads_compile_control_tokens_of_template_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Previously, with 80,000 tokens each of several first chats took 2.6 s and 129 MB."""
    compiled: list[tuple[str, ...]] = []
    num_threads = 8
    ready, second_compiler = threading.Barrier(num_threads), threading.Barrier(2)

    def count(words: Iterable[str]) -> Pattern[str]:
        compiled.append(tuple(words))
        with suppress(threading.BrokenBarrierError):
            second_compiler.wait(timeout=0.2)  # until a second thread compiles at the same time
        return match_any(compiled[-1])

    monkeypatch.setattr("templating.control_tokens.match_any", count)
    found = ControlTokens(make())

    def find() -> None:
        ready.wait()
        found.find(CHATML)

    threads = [threading.Thread(target=find) for _ in range(num_threads)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert compiled
    assert len(compiled) == len(set(compiled)), "control tokens were compiled twice"
    found.find(CHATML + "{# another template #}")
    assert len(compiled) == len(set(compiled)), "templates share the tokens of the model"


def test_messages_with_many_control_tokens_are_protected_quickly() -> None:
    """Previously, each token that is also in the vocabulary was searched for in each message."""
    tokenizer = make(*(f"<|{number}|>" for number in range(5_000)), kind="unigram")
    text = LiteralText(tokenizer)
    text.prepare([CHATML])
    chat = [{"role": "user", "content": "</s> <s> <|im_end|>" * 20}]
    started = time.process_time()
    protected = text.protect_chat(chat, None, CHATML)
    rendered = f"<|im_start|>user\n{protected.messages[0]['content']}<|im_end|>\n"
    (encoded,) = text.encode([rendered], [protected.literals], CHATML)
    assert time.process_time() - started < 0.5
    own = {tokenizer.convert_tokens_to_ids(name) for name in ("</s>", "<s>", "<|im_end|>")}
    assert len([token for token in encoded.ids if token in own]) == 1
