"""Bodies of `POST /v1/classify`."""

from typing import Any

import pytest

from serving.classification.request import parse_classify_request
from serving.errors import InvalidRequestError


def parse(**fields: Any) -> Any:
    return parse_classify_request({"model": "m", **fields})


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("a", (("a",),)),
        (["a", "b"], (("a",), ("b",))),
        ([["a", "b"]], (("a", "b"),)),
    ],
)
def test_input_is_text_texts_or_pairs(given: Any, expected: Any) -> None:
    assert parse(input=given).input == expected
    assert parse(input=given).top_k == 5


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (5, "'input': expected a text, a list of texts, or a list of pairs of texts, found 5"),
        ([], "'input': expected 1 to 64 inputs, got 0"),
        (["a"] * 65, "'input': expected 1 to 64 inputs, got 65"),
        (["a", ["b", "c"]], "'input': expected only texts, not empty, found ['b', 'c'] among them"),
        ([["a"]], "'input': expected only pairs of two texts that are not empty, found ['a']"),
        ("", "'input': expected only texts, not empty, found '' among them"),
        (["a" * 600_000] * 2, "expected inputs of at most 1000000 characters in all, got 1200000"),
    ],
)
def test_other_input_is_refused(given: Any, message: str) -> None:
    with pytest.raises(InvalidRequestError) as found:
        parse(input=given)
    assert found.value.message.startswith(message)


@pytest.mark.parametrize("field", [{"top_k": 0}, {"truncate": "yes"}, {"temperature": 1}])
def test_other_fields_are_refused(field: Any) -> None:
    with pytest.raises(InvalidRequestError, match=next(iter(field))):
        parse(input="a", **field)
