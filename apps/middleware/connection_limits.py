"""Limits on uvicorn's connections, which apply before a request reaches an application.

Serve's proxy starts uvicorn without any limits, and uvicorn's parser (httptools) has none for
headers: `h11_max_incomplete_event_size` is for the other parser, and Serve passes neither that nor
`limit_concurrency`. This is the only module that depends on uvicorn's classes:
`install_connection_limits` registers a subclass of uvicorn's protocol as the default. It is called
from the function that Serve's proxy calls before it starts uvicorn.
"""

import asyncio
import os
from collections.abc import Callable
from typing import Any

import uvicorn.config
from pydantic import BaseModel, ConfigDict, Field
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

_VARIABLE_PREFIX = "TUNESERVE_HTTP_"


class ConnectionLimits(BaseModel):
    """Limits per proxy process, set by environment variables `TUNESERVE_HTTP_<NAME>`."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    max_header_bytes: int = Field(
        65_536,
        ge=1024,
        description="Request line and headers, and the trailers after a chunked body, in bytes; a "
        "read of up to 256 KiB may exceed it.",
    )
    header_timeout_s: float = Field(
        20.0,
        gt=0,
        description="Seconds until the last header, from the first byte after a request on.",
    )
    body_idle_timeout_s: float = Field(
        60.0, gt=0, description="Seconds that a client may send nothing of an unfinished body."
    )
    max_body_bytes: int = Field(
        10_000_000,
        ge=1024,
        description="Body of a request, in bytes; uploads of files and models have limits of "
        "their own.",
    )
    max_connections: int = Field(1024, ge=1, description="Open connections; more get a 503.")


def read_connection_limits() -> ConnectionLimits:
    """Read the limits from the environment; raises `ValidationError` for values out of range."""
    names = {name: f"{_VARIABLE_PREFIX}{name.upper()}" for name in ConnectionLimits.model_fields}
    given = {name: os.environ[key] for name, key in names.items() if key in os.environ}
    return ConnectionLimits.model_validate(given)


def install_connection_limits() -> None:
    """Apply the limits to every uvicorn server that this process starts afterwards."""
    name = f"{LimitedHttpProtocol.__module__}:{LimitedHttpProtocol.__qualname__}"
    uvicorn.config.HTTP_PROTOCOLS["auto"] = name


class _Timer:
    """One call in the future, which the next `start` replaces."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._handle: asyncio.TimerHandle | None = None

    @property
    def is_started(self) -> bool:
        """Whether `start` was called since the last `stop`."""
        return self._handle is not None

    def start(self, timeout_s: float, action: Callable[[], None]) -> None:
        """Call `action` after `timeout_s` seconds."""
        self.stop()
        self._handle = self._loop.call_later(timeout_s, action)

    def stop(self) -> None:
        """Cancel the call."""
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None


class LimitedHttpProtocol(HttpToolsProtocol):
    """uvicorn's protocol, with limits on headers, idle bodies and the number of connections."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._limits = read_connection_limits()
        self._is_in_headers = True
        self._is_in_message = False
        self._num_header_bytes = 0
        """Bytes received since the last complete headers, body data or complete message."""
        self._has_advanced = False
        self._has_new_body = False
        self._timer = _Timer(self.loop)

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Start the header timeout, or refuse the connection if there are too many."""
        super().connection_made(transport)
        if len(self.connections) > self._limits.max_connections:
            self._refuse(503, "The server has too many connections.")
            return
        self._expect_headers()

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop the timer."""
        self._timer.stop()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Parse bytes; refuse headers or trailers that are too long, and limit their time."""
        self._has_advanced = False
        super().data_received(data)
        if self._has_advanced:
            self._num_header_bytes = 0
            return
        self._num_header_bytes += len(data)
        if self._num_header_bytes > self._limits.max_header_bytes:
            self._refuse(431, f"Headers exceed {self._limits.max_header_bytes} bytes.")
        elif not self._timer.is_started and not self.transport.is_closing() and self._is_idle:
            # Empty lines before a request start no message, but cancel uvicorn's own timeout.
            self._expect_headers()

    def on_message_begin(self) -> None:
        """Start the header timeout of a request."""
        super().on_message_begin()
        self._is_in_message = True
        self._expect_headers()

    def on_header(self, name: bytes, value: bytes) -> None:
        """Keep a header; drop a trailer, which no application reads."""
        if self._is_in_headers:
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        """Replace the header timeout by the body timeout."""
        self._is_in_headers = False
        self._has_advanced = True
        self._timer.start(self._limits.body_idle_timeout_s, self._check_body)
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        """Record that the client is sending."""
        self._has_new_body = self._has_advanced = True
        super().on_body(body)

    def on_message_complete(self) -> None:
        """Stop the timer; uvicorn's keep-alive timeout applies until the client sends again."""
        self._is_in_message = False
        self._has_advanced = True
        self._timer.stop()
        super().on_message_complete()

    @property
    def _is_idle(self) -> bool:
        """Whether no request is being received and no response is being sent."""
        return not self._is_in_message and (self.cycle is None or self.cycle.response_complete)

    def _expect_headers(self) -> None:
        self._is_in_headers = True
        self._timer.start(self._limits.header_timeout_s, self._end_headers)

    def _end_headers(self) -> None:
        self._refuse(408, "The headers did not come in time.")

    def _check_body(self) -> None:
        """Close a connection that sent no body data, unless the application paused the reading."""
        if self._has_new_body or self.flow.read_paused:
            self._has_new_body = False
            self._timer.start(self._limits.body_idle_timeout_s, self._check_body)
        else:
            self._refuse(408, "The body did not come in time.")

    def _refuse(self, status: int, message: str) -> None:
        """Send a response, if none has started, and close the connection."""
        self._timer.stop()
        if self.transport.is_closing():
            return
        is_waiting = self._is_in_headers and (self.cycle is None or self.cycle.response_complete)
        if is_waiting or (self.cycle is not None and not self.cycle.response_started):
            head = b"content-type: text/plain\r\ncontent-length: %d\r\nconnection: close\r\n\r\n"
            content = message.encode()
            self.transport.write(STATUS_LINE[status] + head % len(content) + content)
        self.transport.close()
