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
MAX_READING = 8
"""Most documents that wait for their content at once; others come without it."""
_logger = logging.getLogger(__name__)


class FirstViews:
    """The functions that read the first content of pages, by the paths of the pages."""

    def __init__(self) -> None:
        self._readers: dict[str, tuple[ReadView, object]] = {}
        self._num_reading = 0

    def mark(self, path: str, read: ReadView, default: object = None) -> str:
        """Return the mark for a component's value; `default` is its value without the content."""
        self._readers[path] = (read, default)
        return _write_mark(path)

    def has(self, path: str) -> bool:
        """Return whether the document of a page has its first content."""
        return path in self._readers

    def split(self, html: str, path: str) -> tuple[str, str] | None:
        """Return what is before and after the mark in a document; None if it has no mark."""
        before, mark, after = html.partition(f'"{_write_mark(path)}"')
        return (before, after) if mark else None

    async def read(self, path: str, request: Request) -> str:
        """Return the first content of a page as JSON for the script of a document."""
        read, default = self._readers[path]
        if self._num_reading >= MAX_READING:
            return _write(default)
        self._num_reading += 1
        try:
            with act_for(request):
                return _write(await asyncio.wait_for(read(request), PATIENCE_S))
        except (ApiClientError, TimeoutError) as exc:
            _logger.info("The page %r opens without its content: %s", path, exc)
        except Exception:  # the page asks again, and Gradio reports what fails then
            _logger.exception("The first content of the page %r cannot be read", path)
        finally:
            self._num_reading -= 1
        return _write(default)


def _write(value: object) -> str:
    """Return JSON that is safe in the script of a document."""
    return json.dumps(value).replace("<", "\\u003c")


def _write_mark(path: str) -> str:
    return f"first-view:{path}"
