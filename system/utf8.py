"""Text as it can be stored and sent."""


def clean_text(text: str) -> str:
    """Return text that can be encoded as UTF-8: JSON can escape half of a surrogate pair.

    Each half becomes a question mark.
    """
    return text.encode(errors="replace").decode()
