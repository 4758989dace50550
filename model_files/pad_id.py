"""The token that fills rows of a batch to the same length."""

from typing import Any


def find_pad_id(config: Any, tokenizer: Any) -> int:
    """Return the padding of a model's configuration, else its tokenizer's, its end token, or 0.

    A decoder with a classification head finds the end of a row by the padding of its configuration.
    """
    ids = (
        getattr(config.get_text_config(), "pad_token_id", None),
        tokenizer.pad_token_id,
        tokenizer.eos_token_id,
    )
    return next((int(one) for one in ids if one is not None), 0)
