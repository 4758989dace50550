"""What the page "Chat" shows once it is filled: a question that is sent before waits for that."""

import asyncio
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from apps.ui.chat.model_menu import ModelMenu

PATIENCE_S = 60.0


class Opened(NamedTuple):
    """The chosen model and the menu when the page was filled."""

    model: Any
    menu: ModelMenu


@dataclass
class Opening:
    """The opening of one tab."""

    _is_over: asyncio.Event = field(default_factory=asyncio.Event, init=False)
    _is_begun: bool = field(default=False, init=False)
    _opened: Opened | None = field(default=None, init=False)

    @property
    def is_running(self) -> bool:
        """Whether the page is being filled at the moment."""
        return self._is_begun and not self._is_over.is_set()

    def begin(self) -> None:
        """Let questions wait until the page is filled."""
        self._is_begun = True

    def end(self, opened: Opened | None) -> None:
        """Let questions be sent; None if the page could not be filled.

        Only the first call has an effect.
        """
        if not self._is_over.is_set():
            self._opened = opened
            self._is_over.set()

    async def wait(self) -> Opened | None:
        """Wait until the page is filled, and return what it was filled with.

        Returns None if it could not be filled, or if that takes longer than `PATIENCE_S`.
        """
        try:
            async with asyncio.timeout(PATIENCE_S):
                await self._is_over.wait()
        except TimeoutError:
            return None
        return self._opened
