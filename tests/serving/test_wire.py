"""The types that cross the Serve boundary, and the libraries that their import loads."""

import pickle
import subprocess
import sys

import pytest

from serving.openai.chat import parse_chat_request
from serving.openai.completion import parse_completion_request
from serving.wire import Piece, StreamItem, TextRequest, TokenLogprob, TokenText, ValidRequest

MESSAGES = [{"role": "user", "content": "fox"}, {"role": "assistant"}]


@pytest.mark.parametrize(
    ("content", "kind"),
    [
        (parse_chat_request({"model": "m", "messages": MESSAGES}), "chat"),
        (parse_chat_request({"model": "m", "messages": MESSAGES, "n": 2, "seed": None}), "chat"),
        (parse_completion_request({"model": "m", "prompt": [[1, 2], [3]]}), "completion"),
    ],
)
def test_pickled_request_is_equal(content: ValidRequest, kind: str) -> None:
    request = TextRequest("id", content)
    received: TextRequest = pickle.loads(pickle.dumps(request))
    assert received == request
    assert received.kind == kind
    assert received.content.model_fields_set == content.model_fields_set
    assert received.content.temperature is None


def test_pickled_stream_item_keeps_its_types() -> None:
    token = TokenLogprob(TokenText("a", (97,)), -0.5)
    item: StreamItem = (Piece(0, "a", tokens=(token,)),), None
    received: StreamItem = pickle.loads(pickle.dumps(item))
    (piece,), origin = received
    assert isinstance(piece, Piece)
    assert piece.tokens[0].token.utf8 == (97,)
    assert origin is None


def test_import_of_wire_loads_no_heavy_library() -> None:
    slow = ["torch", "transformers", "numba", "ray"]
    program = f"import sys, serving.wire; print([name for name in {slow} if name in sys.modules])"
    found = subprocess.run(
        [sys.executable, "-c", program], check=True, capture_output=True, text=True
    )
    assert found.stdout == "[]\n"
