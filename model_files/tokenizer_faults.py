"""Translation of faults of the Rust library `tokenizers` to one exception type."""

from collections.abc import Iterator
from contextlib import contextmanager

_PANIC = "PanicException"


class TokenizerFaultError(ValueError):
    """The tokenizer of a model cannot be loaded, or failed on a text."""


@contextmanager
def translate_faults() -> Iterator[None]:
    """Translate exceptions that the library raises in the body to `TokenizerFaultError`.

    The library raises plain `Exception`s. A panic is a `BaseException` of a class that no module
    exports: `except Exception` does not catch it, so it would end the thread or the event loop that
    uses the tokenizer.
    """
    try:
        yield
    except BaseException as exc:
        if type(exc) is not Exception and type(exc).__name__ != _PANIC:
            raise
        raise TokenizerFaultError(f"the tokenizer failed: {str(exc)[:200]}") from exc
