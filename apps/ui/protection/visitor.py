"""The visitor whose event is handled; the only module that depends on where Gradio stores it.

Gradio runs event handlers in its own tasks, so a context variable that is set by middleware does
not reach them. Before every step of a handler, Gradio sets `LocalContext.request` to the request
that sent the event.
"""

from collections.abc import Iterator
from contextlib import contextmanager

from gradio.context import LocalContext
from starlette.requests import Request

from apps.ui.protection.access import read_password


def find_visitor_key() -> str | None:
    """Return the key of the visitor whose event is handled, or None."""
    request = LocalContext.request.get(None)
    return None if request is None else read_password(request.headers.get("authorization", ""))


@contextmanager
def act_for(request: Request) -> Iterator[None]:
    """Make requests to the API as those of the visitor who has sent `request`."""
    token = LocalContext.request.set(request)  # type: ignore[arg-type] # it has headers too
    try:
        yield
    finally:
        LocalContext.request.reset(token)
