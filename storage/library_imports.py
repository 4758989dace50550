"""Imports of libraries that take seconds, in whichever thread needs them first."""

import threading

_LOCK = threading.Lock()


def import_transformers() -> None:
    """Import transformers; call this before a function imports what needs it.

    The package replaces itself in `sys.modules`. A second thread that waits for the import gets the
    module from before, and `from transformers import ...` fails there.
    """
    with _LOCK:
        import transformers  # noqa: F401
