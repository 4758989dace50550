"""Text that has no UTF-8 is replaced, all other text stays."""

from system.utf8 import clean_text


def test_half_of_a_surrogate_pair_is_replaced() -> None:
    assert clean_text("a\ud800b\udc00") == "a?b?"
    assert clean_text("ä 中 😀") == "ä 中 😀"
