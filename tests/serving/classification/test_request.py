"""Bodies of `POST /v1/classify`."""

from typing import Any

import pytest

from serving.classification.request import ImageInput, parse_classify_request
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


def test_images_are_base64_or_data_urls() -> None:
    coded = "YWJj"
    for given in (coded, f"data:image/png;base64,{coded}", f"DATA:image/x;a=b;base64,{coded}"):
        (image,) = parse(images=given).images
        assert image == ("image 0", b"abc")
    uploaded = ImageInput("'a.png'", b"abc")
    assert parse(images=[uploaded]).inputs == (uploaded,)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (["YWJj", "?"], "'images': image 1 is neither base64 nor a data URL"),
        (["YWJj", 5], "'images': image 1 is 5, expected base64 or a data URL"),
        ("data:image/png,abc", "'images': image 0 begins with 'data:image/png,abc', expected a"),
        (5, "'images': expected an image in base64, or a list of them, found 5"),
        ([], "'images': expected 1 to 64 images, got 0"),
        (["YQ=="] * 65, "'images': expected 1 to 64 images, got 65"),
    ],
)
def test_other_images_are_refused(given: Any, message: str) -> None:
    with pytest.raises(InvalidRequestError) as found:
        parse(images=given)
    assert found.value.message.startswith(message)


def test_either_texts_or_images_are_expected() -> None:
    for fields in ({}, {"input": "a", "images": "YQ=="}):
        with pytest.raises(InvalidRequestError, match="expected either 'input' with texts or"):
            parse(**fields)
