"""What a page shows at first, in its document: its frame, and the content for it.

Gradio's script draws the components of a page, and asks for their content then. That takes one to
two seconds, in which a visitor would see nothing. The document has the frame of such a page, which
the page's script fills with the content in the document (`assets/frames.js`). Of a page without a
frame, a script gives the content in the document to the components, before Gradio draws them.
"""

import asyncio
import json
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from starlette.requests import Request

from apps.client.errors import ApiClientError
from apps.ui.protection.visitor import act_for

ReadView = Callable[[Request], Awaitable[object]]
"""Return the content of a frame for the request of a document; may raise `ApiClientError`."""

PATIENCE_S = 2.0
"""How long a document waits for its content: the page asks for it again if it is missing."""
MAX_READING = 8
"""Most documents that wait for their content at once; others come without it."""
_logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Frame:
    """An element that a page's scripts fill with content."""

    elem_id: str
    template: str
    """One element as HTML, with `${value}` where the content is HTML that Gradio updates."""
    scripts: tuple[str, ...]
    """Names in `assets`. The last one calls `tuneserveFrames.define` with the id."""

    def list_scripts(self) -> list[str]:
        """Return the names of all files that the frame needs."""
        return ["frames.js", *(f"{name}.js" for name in self.scripts)]

    def render(self) -> str:
        """Render the frame without its content."""
        return self.template.replace("${value}", "")


class FirstViews:
    """The frames of pages, and the functions that read their content, by the pages' paths."""

    def __init__(self) -> None:
        self._frames: dict[str, Frame] = {}
        self._scripts: dict[str, list[str]] = {}
        self._readers: dict[str, tuple[ReadView, object]] = {}
        self._num_reading = 0

    def add(self, path: str, frame: Frame, read: ReadView, default: object = None) -> None:
        """Add a page; `default` is its content when it cannot be read in time."""
        self._frames[path] = frame
        self._scripts[path] = frame.list_scripts()
        self._readers[path] = (read, default)

    def add_without_frame(self, path: str, script: str, read: ReadView) -> None:
        """Add a page whose content is for the script with a name in `assets`; null without it."""
        self._scripts[path] = [f"{script}.js"]
        self._readers[path] = (read, None)

    def find(self, path: str) -> Frame | None:
        """Return the frame of a page, if its document has one."""
        return self._frames.get(path)

    def list_scripts(self, path: str) -> list[str]:
        """Return the names of the scripts for a page's content; none if its document has none."""
        return self._scripts.get(path, [])

    async def read(self, path: str, request: Request) -> str:
        """Return the content of a page's frame as JSON for a script element."""
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
