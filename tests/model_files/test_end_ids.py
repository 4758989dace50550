from typing import Any

import pytest
from transformers import GenerationConfig

from model_files.end_ids import list_end_ids
from tests.tokenizer_kinds import make_tokenizer


@pytest.mark.parametrize(
    ("of_generation", "others"), [(None, []), (7, [7]), ([7, 9, 7], [7, 9]), ([], [])]
)
def test_end_ids_are_unique_and_begin_with_tokenizer_id(
    of_generation: Any, others: list[int]
) -> None:
    tokenizer = make_tokenizer("byte-level")
    own = tokenizer.eos_token_id
    for more in ([], [own]):
        ids = of_generation if not more else [*others, *more]
        found = list_end_ids(GenerationConfig(eos_token_id=ids), tokenizer)
        assert found == (own, *others)


def test_end_ids_are_empty_without_end_tokens() -> None:
    tokenizer = make_tokenizer("byte-level")
    assert list_end_ids(None, tokenizer) == (tokenizer.eos_token_id,)
    tokenizer.eos_token = None
    assert list_end_ids(None, tokenizer) == ()
