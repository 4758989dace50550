"""Translation of the exceptions that a library raises for a file to one exception type."""

from collections.abc import Iterator
from contextlib import contextmanager

_MAX_CHARACTERS = 300


class LibraryError(RuntimeError):
    """A library failed: the message has what failed, the library's own message and what to do."""


@contextmanager
def translate_library_errors(failed: str, advice: str) -> Iterator[None]:
    """Translate exceptions of the body to `LibraryError`, with the exception as its cause.

    The body must contain only calls of the library, so that a fault of our own code is never
    translated. `failed` is the beginning of a sentence, such as 'gguf cannot read tiny.gguf', and
    `advice` its end. An `OSError`, which has a message for users, is raised unchanged.
    """
    try:
        yield
    except OSError:
        raise
    except Exception as exc:  # libraries document few of their exceptions
        words = " ".join(str(exc).split())[:_MAX_CHARACTERS]
        reason = f"{type(exc).__name__}: {words}" if words else type(exc).__name__
        raise LibraryError(f"{failed} ({reason}); {advice}") from exc
