"""A run's events and log as they come, for as long as it has not ended."""

import asyncio
import json
from collections.abc import AsyncGenerator, Iterator
from contextlib import suppress
from typing import Any

from apps.errors import not_found
from apps.jobs import describe_event
from training.runs import RunFolder

POLL_S = 0.25
ALIVE_S = 15.0
"""After so long without anything to tell, a comment says that the connection is alive."""

_PIECE_BYTES = 1 << 20


def has_ended(run: RunFolder) -> bool:
    """Whether nothing more will be told; also of a run that has been deleted."""
    try:
        return run.read_record().is_final
    except FileNotFoundError:
        return True


def find_place(run: RunFolder, last_event_id: str | None) -> int:
    """Count the events up to one, which a client names that has seen it; raises `ApiError` 404."""
    if last_event_id is None:
        return 0
    ids = [event["id"] for event in run.read_events()]
    if last_event_id not in ids:
        raise not_found("event", last_event_id)
    return ids.index(last_event_id) + 1


async def follow_events(run: RunFolder, place: int) -> AsyncGenerator[str, None]:
    """Yield the events after the first `place` as server-sent events, until the run has ended."""
    quiet_s = 0.0
    while True:
        is_last = has_ended(run)  # before the look: what is told before the end is told
        events = (await asyncio.to_thread(run.read_events))[place:]
        place += len(events)
        if events:
            yield "".join(map(_write_event, events))
            quiet_s = 0.0
        if is_last:
            return
        if quiet_s >= ALIVE_S:
            yield ": nothing new\n\n"
            quiet_s = 0.0
        await asyncio.sleep(POLL_S)
        quiet_s += POLL_S


async def follow_log(run: RunFolder, offset: int) -> AsyncGenerator[bytes, None]:
    """Yield what stands in a run's log from a byte on, and is added, until the run has ended."""
    while True:
        is_last = has_ended(run)
        for piece in _read_pieces(run, offset):
            offset += len(piece)
            yield piece
        if is_last:
            return
        await asyncio.sleep(POLL_S)


def _read_pieces(run: RunFolder, offset: int) -> Iterator[bytes]:
    with suppress(FileNotFoundError), run.log_file.open("rb") as file:
        file.seek(offset)
        while piece := file.read(_PIECE_BYTES):
            yield piece


def _write_event(event: dict[str, Any]) -> str:
    shown = json.dumps(describe_event(event), ensure_ascii=False, separators=(",", ":"))
    return f"id: {event['id']}\ndata: {shown}\n\n"
