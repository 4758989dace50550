"""What Ray wraps an exception of a worker in."""

from typing import Any


def unwrap_user_exception(exception: BaseException) -> BaseException:
    """Return the exception that a worker raised; one that is not wrapped is returned as it is.

    Ray Train's wrapper has no public attribute for it; a test fails where Ray renames this one.
    """
    wrapped: Any = getattr(exception, "_base_exc", None)
    return wrapped if isinstance(wrapped, BaseException) else exception
