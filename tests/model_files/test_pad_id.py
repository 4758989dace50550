from types import SimpleNamespace

import pytest
from transformers import LlamaConfig

from model_files.pad_id import find_pad_id


@pytest.mark.parametrize(
    ("of_config", "of_tokenizer", "end", "expected"),
    [(5, 2, 3, 5), (0, 2, 3, 0), (None, 2, 3, 2), (None, None, 3, 3), (None, None, None, 0)],
)
def test_padding_of_configuration_comes_first(
    of_config: int | None, of_tokenizer: int | None, end: int | None, expected: int
) -> None:
    tokenizer = SimpleNamespace(pad_token_id=of_tokenizer, eos_token_id=end)
    assert find_pad_id(LlamaConfig(pad_token_id=of_config), tokenizer) == expected
