"""A run's events and log as they come, for as long as it has not ended."""

import asyncio
import os
import time
from collections.abc import AsyncGenerator, Generator
from contextlib import suppress

from apps.errors import not_found
from apps.event_stream import write_event
from apps.jobs import describe_event
from storage import durable
from training.runs import RunFolder

POLL_S = 0.25
ALIVE_S = 15.0
"""After so long without anything to tell, a comment says that the connection is alive."""

_PIECE_BYTES = 1 << 20
_CONTINUATION_BYTES = bytes(range(0x80, 0xC0))  # those of a character in UTF-8 after its first
_MAX_CONTINUATION_BYTES = 3


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


async def follow_events(run: RunFolder, place: int, max_age_s: float) -> AsyncGenerator[str, None]:
    """Yield the events after the first `place` as server-sent events, until the run has ended.

    Each look reads what was added to the file, not the file. After `max_age_s` the stream ends; its
    client connects again with the id of the last event.
    """
    lines = durable.LineFollower(run.events_file)
    num_read = 0
    quiet_s = 0.0
    ends_at = time.monotonic() + max_age_s
    while True:
        # The end is read first: what was written before it is sent.
        is_last, added = await asyncio.to_thread(lambda: (has_ended(run), lines.read_new()))
        events = run.number_events(added, num_read + 1)
        new = events[max(0, place - num_read) :]
        num_read += len(events)
        if new:
            yield "".join(write_event(describe_event(event), event["id"]) for event in new)
            quiet_s = 0.0
        if is_last or time.monotonic() > ends_at:
            return
        if quiet_s >= ALIVE_S:
            yield ": nothing new\n\n"
            quiet_s = 0.0
        await asyncio.sleep(POLL_S)
        quiet_s += POLL_S


async def follow_log(run: RunFolder, offset: int, max_age_s: float) -> AsyncGenerator[bytes, None]:
    """Yield the bytes of a run's log from `offset` on, as they are added, until the run has ended.

    After `max_age_s` the log ends too, once the piece that was begun is sent; its client asks for
    the rest by the offset.
    """
    ends_at = time.monotonic() + max_age_s
    while True:
        is_last = await asyncio.to_thread(has_ended, run)
        for piece in read_log(run, offset):
            offset += len(piece)
            yield piece
            if time.monotonic() > ends_at:
                return
        if is_last or time.monotonic() > ends_at:
            return
        await asyncio.sleep(POLL_S)


def read_log(run: RunFolder, begin: int, end: int | None = None) -> Generator[bytes, None, None]:
    """Yield the bytes of a run's log from one on, up to another or to what its end is now."""
    with suppress(FileNotFoundError), run.log_file.open("rb") as file:
        file.seek(begin)
        while piece := file.read(_PIECE_BYTES if end is None else min(_PIECE_BYTES, end - begin)):
            begin += len(piece)
            yield piece


def find_log_tail(run: RunFolder, num_bytes: int) -> tuple[int, int]:
    """Return where the last bytes of a run's log begin, and its size; no character is cut."""
    try:
        with run.log_file.open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            begin = max(0, size - num_bytes)
            file.seek(begin)
            head = file.read(min(num_bytes, _MAX_CONTINUATION_BYTES))
    except FileNotFoundError:
        return 0, 0
    return begin + len(head) - len(head.lstrip(_CONTINUATION_BYTES)), size
