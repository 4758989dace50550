"""Bodies of `POST /v1/embeddings`."""

from typing import Any

import pytest

from serving.classification.embedding_request import parse_embedding_request
from serving.errors import InvalidRequestError


def parse(**fields: Any) -> Any:
    return parse_embedding_request({"model": "m", **fields})


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("a", ("a",)),
        (["a", "b"], ("a", "b")),
        ([1, 2], ((1, 2),)),
        ([[1, 2], [3]], ((1, 2), (3,))),
    ],
)
def test_input_is_texts_or_tokens(given: Any, expected: Any) -> None:
    assert parse(input=given).input == expected
    assert parse(input=given).encoding_format == "float"


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"input": 5}, "'input': expected a text, a list of texts, a list of tokens, or a list"),
        ({"input": []}, "'input': expected 1 to 64 inputs, got 0"),
        ({"input": ["a"] * 65}, "'input': expected 1 to 64 inputs, got 65"),
        ({"input": ["a", [1]]}, "'input': expected only texts, not empty, found [1] among them"),
        ({"input": [[1], "a"]}, "'input': expected only lists of tokens, not empty, found 'a'"),
        ({"input": [[]]}, "'input': expected only lists of tokens, not empty, found []"),
        ({"input": [1, True]}, "'input': expected only lists of tokens, not empty, found [1, T"),
        ({"input": [[1] * 600_000] * 2}, "expected inputs of at most 1000000 characters or tok"),
        ({"input": "a", "encoding_format": "int8"}, "'encoding_format': "),
        ({"input": "a", "pooling": "max"}, "'pooling': "),
        ({"input": "a", "dimensions": 0}, "'dimensions': "),
    ],
)
def test_other_bodies_are_refused(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidRequestError) as found:
        parse(**fields)
    assert found.value.message.startswith(message)
