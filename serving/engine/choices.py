"""Several answers to one request, merged into one stream or collected as whole answers."""

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace

from serving.engine.answer import Piece

Pieces = AsyncGenerator[Piece, None]


@dataclass(frozen=True)
class ChoicePiece:
    """A piece of the answer with number `index` of a request."""

    index: int
    piece: Piece


async def merge(answers: Sequence[Pieces]) -> AsyncGenerator[list[ChoicePiece], None]:
    """Yield the pieces of all answers as they arrive; pieces available at once form one batch.

    Closing the iterator, or an error of one answer, closes all answers.
    """
    if len(answers) == 1:  # the usual case needs no tasks
        async with aclosing(answers[0]) as pieces:
            async for piece in pieces:
                yield [ChoicePiece(0, piece)]
        return
    arrived: asyncio.Queue[ChoicePiece | BaseException | None] = asyncio.Queue()
    tasks = [asyncio.create_task(_pass_on(i, one, arrived)) for i, one in enumerate(answers)]
    num_running = len(tasks)
    try:
        while num_running:
            batch: list[ChoicePiece] = []
            items = [await arrived.get()]
            while not arrived.empty():
                items.append(arrived.get_nowait())
            for item in items:
                if isinstance(item, BaseException):
                    raise item
                if item is None:
                    num_running -= 1
                else:
                    batch.append(item)
            if batch:
                yield batch
    finally:
        await _end(tasks)


async def gather(answers: Sequence[Pieces]) -> list[Piece]:
    """Return all answers, each as one piece; an error of one, or cancellation, closes all."""
    tasks = [asyncio.create_task(_join(one)) for one in answers]
    try:
        return await asyncio.gather(*tasks)
    finally:
        await _end(tasks)


async def _pass_on(
    index: int, pieces: Pieces, arrived: "asyncio.Queue[ChoicePiece | BaseException | None]"
) -> None:
    try:
        async with aclosing(pieces):
            async for piece in pieces:
                arrived.put_nowait(ChoicePiece(index, piece))
        arrived.put_nowait(None)
    except Exception as exc:  # noqa: BLE001 - raised again where the pieces are taken
        arrived.put_nowait(exc)


async def _join(pieces: Pieces) -> Piece:
    async with aclosing(pieces):
        parts = [piece async for piece in pieces]
    tokens = tuple(token for piece in parts for token in piece.tokens)
    return replace(parts[-1], text="".join(piece.text for piece in parts), tokens=tokens)


async def _end(tasks: "Sequence[asyncio.Task[object]]") -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
