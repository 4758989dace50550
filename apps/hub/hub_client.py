"""The HTTP client of the hub's library in the process of a transfer.

The library waits without end for an answer, and follows redirects of uploads to other repositories.
"""

import time
from collections.abc import Callable, Iterator

import httpx2
from huggingface_hub import get_session, set_client_factory

ANSWER_S = 300.0
"""Seconds until the hub answers, or takes a further piece of an upload."""
_CONNECT_S = 30.0
_SIGN_S = 1.0


class RedirectedUploadError(Exception):
    """The hub answers a request that writes with a redirect."""


class _FollowedStream(httpx2.SyncByteStream):
    """The content of a request; `report` is called while it is sent."""

    def __init__(self, stream: httpx2.SyncByteStream, report: Callable[[], None]) -> None:
        self._stream = stream
        self._report = report

    def __iter__(self) -> Iterator[bytes]:
        for piece in self._stream:
            yield piece
            self._report()

    def close(self) -> None:
        self._stream.close()


def use_limited_client(report: Callable[[], None]) -> None:
    """Let the hub's library use a client with time limits, which redirects no POST request.

    `report` is called while content is sent, at most once a second.
    """
    hooks = get_session().event_hooks  # those of the library, as for the offline mode
    reported_at = 0.0

    def report_sometimes() -> None:
        nonlocal reported_at
        if time.monotonic() - reported_at > _SIGN_S:
            reported_at = time.monotonic()
            report()

    def follow(request: httpx2.Request) -> None:
        if isinstance(request.stream, httpx2.SyncByteStream):
            request.stream = _FollowedStream(request.stream, report_sometimes)

    def build_client() -> httpx2.Client:
        return httpx2.Client(
            event_hooks={
                "request": [*hooks["request"], follow],
                "response": [*hooks["response"], _refuse_redirect],
            },
            follow_redirects=True,
            timeout=httpx2.Timeout(ANSWER_S, connect=_CONNECT_S),
        )

    set_client_factory(build_client)


def _refuse_redirect(response: httpx2.Response) -> None:
    if response.request.method == "POST" and response.is_redirect:
        raise RedirectedUploadError("the hub redirects what is written to the repository")
