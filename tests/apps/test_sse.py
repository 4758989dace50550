import asyncio
import json
from collections.abc import AsyncIterator

import pytest

from apps.sse import DONE, read_data, write_event


def read(*pieces: bytes, accepts_cut_end: bool = False) -> list[bytes]:
    async def stream() -> AsyncIterator[bytes]:
        for piece in pieces:
            yield piece

    async def collect() -> list[bytes]:
        return [data async for data in read_data(stream(), accepts_cut_end=accepts_cut_end)]

    return asyncio.run(collect())


@pytest.mark.parametrize("size", [1, 2, 7, 1000])
def test_written_events_are_read_in_pieces_of_any_size(size: int) -> None:
    sent = [{"text": "line\u2028separator \u0085 🥨\n\r\n"}, {"text": ""}]
    stream = "".join(write_event(data, f"e{number}") for number, data in enumerate(sent)).encode()
    pieces = [stream[begin : begin + size] for begin in range(0, len(stream), size)]
    assert [json.loads(data) for data in read(*pieces)] == sent


def test_written_event_escapes_unicode_line_separators() -> None:
    assert len(write_event({"text": "\u2028\u2029\u0085"}, "e1").splitlines()) == 3


def test_comments_ids_and_carriage_returns_are_not_data() -> None:
    stream = b": alive\r\n\r\nid: 1\r\nevent: x\r\ndata:one\r\n\r\ndata:  two\n\ndata: [DONE]\n\n"
    assert read(stream) == [b"one", b"two", DONE]


@pytest.mark.parametrize("end", [b"data: cut", b"data: ", b"dat", b""])
def test_incomplete_last_event_is_dropped_unless_accepted(end: bytes) -> None:
    assert read(b"data: whole\n\n" + end) == [b"whole"]
    accepted = read(b"data: whole\n\n" + end, accepts_cut_end=True)
    assert accepted == [b"whole", *([end[5:].strip()] if end.startswith(b"data:") else [])]
