"""Thread-safe imports of libraries that take seconds to import."""

import threading

_LOCK = threading.Lock()


def import_transformers() -> None:
    """Import transformers; call this before a function-level import of a module that needs it.

    The package replaces itself in `sys.modules`. A second thread that waits for the import gets the
    original module, and `from transformers import ...` fails there.
    """
    with _LOCK:
        import transformers  # noqa: F401
