"""The visitor that Gradio calls our code for; the one place that knows how Gradio keeps that.

Gradio runs event handlers in tasks of its own, so a context variable that is set where a request
comes in does not reach them. Gradio sets this one anew before every step of a handler, to the
request that the event came with.
"""

from gradio.context import LocalContext

from apps.ui.access import read_password


def find_visitor_key() -> str | None:
    """Return the key of the visitor whose event is handled; None where there is none."""
    request = LocalContext.request.get(None)
    return None if request is None else read_password(request.headers.get("authorization", ""))
