import pytest
from tokenizers import Tokenizer, normalizers

from model_files.tokenizer_faults import TokenizerFaultError, translate_faults

BROKEN = normalizers.Precompiled(b"\x04\0\0\0" + b"\0\0\0\0" + b"abc\0")
"""A normaliser that reads beyond its table for any text, so that the library panics."""


def test_panic_becomes_value_error() -> None:
    with pytest.raises(BaseException, match="^index out of bounds") as caught:
        BROKEN.normalize_str("a")
    assert not isinstance(caught.value, Exception)
    expected = "^the tokenizer failed: index out of bounds"
    with pytest.raises(ValueError, match=expected), translate_faults():
        BROKEN.normalize_str("a")


def test_library_error_becomes_value_error() -> None:
    with pytest.raises(TokenizerFaultError, match="^the tokenizer failed: "), translate_faults():
        Tokenizer.from_str("{}")


@pytest.mark.parametrize("error", [KeyboardInterrupt, MemoryError, OSError, KeyError])
def test_other_errors_are_not_translated(error: type[BaseException]) -> None:
    with pytest.raises(error), translate_faults():
        raise error
