"""Unwrapping of worker exceptions that Ray has wrapped."""

from typing import Any


def unwrap_user_exception(exception: BaseException) -> BaseException:
    """Return the exception that a worker raised; an unwrapped one is returned unchanged.

    Ray Train's wrapper has no public attribute for it; a test fails if Ray renames `_base_exc`.
    """
    wrapped: Any = getattr(exception, "_base_exc", None)
    return wrapped if isinstance(wrapped, BaseException) else exception
