"""Responses that stream the output of a generator."""

import asyncio
from collections.abc import Generator, Mapping

from starlette.responses import StreamingResponse
from starlette.types import Receive, Scope, Send


class ClosingResponse(StreamingResponse):
    """A response that sends a generator's pieces and always closes the generator.

    If the client disconnects, the generator's resources, such as the lock of a model, would
    otherwise be released at an unpredictable time.
    """

    def __init__(
        self,
        pieces: Generator[bytes, None, None],
        media_type: str,
        headers: Mapping[str, str],
    ) -> None:
        super().__init__(pieces, media_type=media_type, headers=headers)
        self._pieces = pieces

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the response to one request."""
        try:
            await super().__call__(scope, receive, send)
        finally:
            await asyncio.shield(asyncio.to_thread(self._pieces.close))
