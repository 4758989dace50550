"""Where the page changes how Gradio works inside."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from gradio.routes import App

_MAKE = "create_app"


@contextmanager
def build_without_apps() -> Iterator[None]:
    """Let Gradio build pages without making a web application for each of them.

    It makes one at the end of every page and one for the queue, for its own server, in 0.15 s of
    processor time each. The page has another server: `gr.mount_gradio_app` makes its application,
    which must be called outside of this context.
    """
    make = App.__dict__[_MAKE]
    setattr(App, _MAKE, staticmethod(_make_nothing))
    try:
        yield
    finally:
        setattr(App, _MAKE, make)


def _make_nothing(*_: Any, **__: Any) -> None:
    """Replace the function that makes an application."""
