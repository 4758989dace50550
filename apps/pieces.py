"""Answers that a generator makes piece by piece."""

import asyncio
from collections.abc import Generator, Mapping

from starlette.responses import StreamingResponse
from starlette.types import Receive, Scope, Send


class PiecesResponse(StreamingResponse):
    """Sends a generator's pieces, and closes it whatever becomes of the client.

    Otherwise what it holds, such as a model that must not be deleted, is let go by chance.
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
        """Answer one request."""
        try:
            await super().__call__(scope, receive, send)
        finally:
            await asyncio.shield(asyncio.to_thread(self._pieces.close))
