"""Streams of a run's events and of its log, until the run has ended."""

import asyncio
import time
from collections import deque
from collections.abc import AsyncGenerator
from itertools import chain

from apps.errors import not_found
from apps.fine_tuning.job_responses import describe_event
from apps.sse import write_event
from storage import durable
from training.run.folder import RunFolder
from training.run.run_log import LogRange, RunLog

POLL_S = 0.25
ALIVE_S = 15.0
"""Seconds without an event after which a comment shows that the connection is alive."""

_CONTINUATION_BYTES = bytes(range(0x80, 0xC0))  # bytes of a UTF-8 character after its first
_MAX_CONTINUATION_BYTES = 3


def has_ended(run: RunFolder) -> bool:
    """Return whether a run has ended, or was deleted, so that no more events follow."""
    try:
        return run.read_record().is_final
    except FileNotFoundError:
        return True


def find_offset(run: RunFolder, last_event_id: str | None) -> int:
    """Return the number of events up to and including the last one that a client has received.

    Raises `ApiError` 404 for an unknown event.
    """
    if last_event_id is None:
        return 0
    ids = [event["id"] for event in run.events.read()]
    if last_event_id not in ids:
        raise not_found("event", last_event_id)
    return ids.index(last_event_id) + 1


async def follow_events(run: RunFolder, offset: int, max_age_s: float) -> AsyncGenerator[str, None]:
    """Yield the events after the first `offset` as server-sent events, until the run has ended.

    Each poll reads only what was added to the file. The stream ends after `max_age_s`; the client
    reconnects with the id of the last event.
    """
    lines = durable.LineFollower(run.events.path)
    num_read = 0
    quiet_s = 0.0
    ends_at = time.monotonic() + max_age_s
    while True:
        # The status is read first, so that all events written before the end are sent.
        is_last, added = await asyncio.to_thread(lambda: (has_ended(run), lines.read_new()))
        events = run.events.number(added, num_read + 1)
        new = events[max(0, offset - num_read) :]
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
    """Yield a run's log from an offset on, and what is appended, until the run has ended.

    Ends early after `max_age_s`, once the current piece is sent, and if rotation of the log has
    removed the byte at the next offset. The client then requests the rest by its offset, and the
    response reports where the log now begins.
    """
    log = RunLog(run.log_file)
    ends_at = time.monotonic() + max_age_s
    while True:
        # The status is read first, so that all that was written before the end is sent.
        is_last, written = await asyncio.to_thread(lambda: (has_ended(run), log.measure()))
        if offset < written.begin:
            return
        pieces = log.read(offset)
        while piece := await asyncio.to_thread(next, pieces, b""):
            offset += len(piece)
            yield piece
            if time.monotonic() > ends_at:
                return
        if is_last or time.monotonic() > ends_at:
            return
        await asyncio.sleep(POLL_S)


def find_log_range(log: RunLog, num_bytes: int, offset: int | None = None) -> LogRange:
    """Return the range of the last bytes of a log, or from an offset on, as far as it exists.

    The last bytes begin with a whole character.
    """
    written = log.measure()
    if offset is not None:
        return LogRange(min(max(offset, written.begin), written.end), written.end)
    begin = max(written.begin, written.end - num_bytes)
    head = b"".join(log.read(begin, min(written.end, begin + _MAX_CONTINUATION_BYTES)))
    return LogRange(begin + len(head) - len(head.lstrip(_CONTINUATION_BYTES)), written.end)


def search_log(log: RunLog, text: str, num_bytes: int) -> bytes:
    """Return the last lines of a log with a text, in any case; at most `num_bytes`, whole lines.

    If the last one alone is longer, it is its end.

    The lines are read one megabyte at a time, and only the result is kept.
    """
    begin, end = log.measure()
    wanted, found, size = text.casefold(), deque[bytes](), 0
    rest = b""
    for piece in chain(log.read(begin, end), [b"\n"]):
        *lines, rest = (rest + piece).split(b"\n")
        for line in lines:
            if line and wanted in line.decode(errors="replace").casefold():
                found.append(line + b"\n")
                size += len(line) + 1
        while len(found) > 1 and size > num_bytes:
            size -= len(found.popleft())
    return b"".join(found)[-num_bytes:]
