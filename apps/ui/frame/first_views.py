"""What a page shows at first, in its document, so that a browser need not ask for it.

Gradio's script asks for the content of a page once it has drawn the components. On a busy machine
that takes as long again as the drawing. A component of such a page has a mark as its value, in
whose place the document has the content.
"""

import asyncio
import json
import logging
from collections.abc import Awaitable, Callable

from starlette.requests import Request

from apps.client.errors import ApiClientError
from apps.ui.protection.visitor import act_for

ReadView = Callable[[Request], Awaitable[object]]
"""Return the value of a component for the request of a document; may raise `ApiClientError`."""

PATIENCE_S = 2.0
"""How long a document waits for its content: the page asks for it again if it is missing."""
_logger = logging.getLogger(__name__)


class FirstViews:
    """The functions that read the first content of pages, by the paths of the pages."""

    def __init__(self) -> None:
        self._readers: dict[str, tuple[ReadView, object]] = {}

    def mark(self, path: str, read: ReadView, default: object = None) -> str:
        """Return the mark for a component's value; `default` is its value without the content."""
        self._readers[path] = (read, default)
        return _write_mark(path)

    def has(self, path: str) -> bool:
        """Return whether the document of a page has its first content."""
        return path in self._readers

    async def fill(self, html: str, path: str, request: Request) -> str:
        """Return a document with the content in the place of the mark."""
        read, value = self._readers[path]
        try:
            with act_for(request):
                value = await asyncio.wait_for(read(request), PATIENCE_S)
        except (ApiClientError, TimeoutError) as exc:
            _logger.info("The page %r opens without its content: %s", path, exc)
        except Exception:  # the page asks again, and Gradio reports what fails then
            _logger.exception("The first content of the page %r cannot be read", path)
        # As Gradio writes values into the script of a document.
        text = json.dumps(value).replace("<", "\\u003c")
        return html.replace(f'"{_write_mark(path)}"', text)


def _write_mark(path: str) -> str:
    return f"first-view:{path}"
