"""Requests for text that other servers answer, with the models and aliases of our store."""

import asyncio
import json
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import aclosing, asynccontextmanager, suppress
from typing import IO, Any

import anyio
import httpx

from apps.errors import ApiError
from apps.settings import UpstreamSettings
from apps.upstream import UnreachableError, Upstream
from serving.aliases import Alias
from serving.errors import (
    DeadlineExceededError,
    InvalidRequestError,
    ModelNotFoundError,
    OverloadedError,
)
from serving.model_store import ModelStore, StoredModel
from serving.origin import Origin, describe_origin

logger = logging.getLogger(__name__)

LISTING_INTERVAL_S = 2.0
_END_TIMEOUT_S = 0.1

Answer = dict[str, Any]


class UpstreamRelay:
    """Hands requests on to the first of some servers that lists the model, and answers back.

    An alias stands for the model that it points to; while no server has that one, for the last
    before it that one has. A model that is listed cannot be deleted from the store. `timeout_s` is
    for all waiting of a request for the servers, not for a client that reads slowly.

    The servers are asked what they have all the time, between `open` and `close`; no request waits
    for that. All limits to what httpx may take are anyio's: where asyncio itself cancels, httpx can
    lose a connection that it was about to close.
    """

    def __init__(
        self, models: ModelStore, upstreams: Sequence[UpstreamSettings], *, timeout_s: float
    ) -> None:
        self._models = models
        self._upstreams = [Upstream(settings) for settings in upstreams]
        self._timeout_s = timeout_s
        self._held: dict[str, IO[bytes]] = {}
        self._watch_scope = anyio.CancelScope()
        self._watching: asyncio.Task[None] | None = None

    async def open(self) -> None:
        """Ask every server what it has, and go on asking."""
        await asyncio.gather(*map(self._ask_for_models, self._upstreams))
        self._watching = asyncio.create_task(self._watch_all())

    async def close(self) -> None:
        """End the asking, close the connections and let go of the models."""
        if self._watching is not None:
            self._watch_scope.cancel()
            await self._watching
        for upstream in self._upstreams:
            await upstream.close()
        self._hold(frozenset())

    async def ask(
        self, path: str, body: dict[str, Any]
    ) -> tuple[Origin, Answer | AsyncGenerator[Answer, None]]:
        """Have a request answered, and say what answers: whole, or in chunks if it is streamed.

        Closing the chunks closes the connection to the server, and so does leaving early.
        """
        patience = Patience(self._timeout_s)
        upstream, origin, response = await self._send(path, body, patience)
        if response.headers.get("content-type", "").startswith("text/event-stream"):
            return origin, _read_chunks(upstream, response, origin, patience)
        async with aclosing(response):
            with upstream.translate_faults():
                async with patience.wait():
                    content = await response.aread()
        return origin, _sign(_parse(content), origin)

    async def check(self) -> None:
        """Raise if no server has a model."""
        if not any(upstream.listed for upstream in self._upstreams):
            raise ApiError(503, "no server has a model", code="upstream_unavailable")

    async def _watch_all(self) -> None:
        with self._watch_scope:
            async with anyio.create_task_group() as group:
                for upstream in self._upstreams:
                    group.start_soon(self._watch, upstream)

    async def _watch(self, upstream: Upstream) -> None:
        while True:
            await anyio.sleep(LISTING_INTERVAL_S)
            try:
                await self._ask_for_models(upstream)
            except Exception:  # whatever it is, the models must not stay what they were for good
                logger.exception("asking the server at %s failed; trying again", upstream.url)

    async def _ask_for_models(self, upstream: Upstream) -> None:
        await upstream.ask_for_models()
        self._hold(frozenset().union(*(one.listed or () for one in self._upstreams)))

    async def _send(
        self, path: str, body: dict[str, Any], patience: "Patience"
    ) -> tuple[Upstream, Origin, httpx.Response]:
        """Have the right server begin its answer; raises what it refuses."""
        async with patience.wait():
            upstream, origin, response = await self._post(path, body)
            if response.status_code == 404:  # the model may have gone since it was listed
                await response.aclose()
                await self._ask_for_models(upstream)
                upstream, origin, response = await self._post(path, body)
            if response.is_success:
                return upstream, origin, response
            async with aclosing(response):
                with upstream.translate_faults():
                    await response.aread()
            raise _translate_refusal(upstream, response)

    async def _post(
        self, path: str, body: dict[str, Any]
    ) -> tuple[Upstream, Origin, httpx.Response]:
        """Send a request to a server that has the model and can be reached."""
        while True:  # each server that cannot be reached lists nothing any more
            upstream, model = self._choose(body)
            origin = _describe(model)
            try:
                return upstream, origin, await upstream.post(path, {**body, "model": model.id})
            except UnreachableError:
                continue

    def _choose(self, body: dict[str, Any]) -> tuple[Upstream, StoredModel]:
        name = body.get("model")
        if not isinstance(name, str) or not name:
            raise InvalidRequestError(
                "'model' is required", param="model", code="missing_required_parameter"
            )
        listings = [upstream.listed for upstream in self._upstreams]
        for model in self._find_candidates(name):
            for upstream, listed in zip(self._upstreams, listings, strict=True):
                if listed is not None and model.id in listed:
                    return upstream, model
        present = ", ".join(sorted(set().union(*filter(None, listings)))) or "none"
        message = f"{name!r} is in the store, but no server has it; they have: {present}"
        if None in listings:
            message += "; a server does not answer, try again in a moment"
            raise ApiError(503, message, param="model", code="upstream_unavailable")
        raise ApiError(503, message, param="model", code="model_not_served")

    def _find_candidates(self, name: str) -> list[StoredModel]:
        """List the models that a name may stand for, the wanted one first."""
        alias: Alias | None = None
        if not self._models.has(name):
            alias = self._models.read_aliases().get(name)
        if alias is None:
            return [self._models.resolve(name)]
        found = map(self._models.find, [alias.model_id, *alias.list_earlier()])
        return [model for model in found if model is not None]

    def _hold(self, listed: frozenset[str]) -> None:
        """Hold those of the listed models that are ours, and let go of the others."""
        for model_id in self._held.keys() - listed:
            self._held.pop(model_id).close()
        for model_id in listed - self._held.keys():
            model = self._models.find(model_id)
            if model is None:
                continue
            try:
                self._held[model_id] = model.hold()
            except ModelNotFoundError:
                logger.warning("model %s has been deleted while a server has it", model_id)


class Patience:
    """How long a request may still wait for a server; what its client takes is not counted."""

    def __init__(self, timeout_s: float) -> None:
        self._timeout_s = self._left_s = timeout_s

    @asynccontextmanager
    async def wait(self) -> AsyncIterator[None]:
        """Take the time that the body takes; raises `DeadlineExceededError` if it is not there."""
        loop = asyncio.get_running_loop()
        began = loop.time()
        try:
            with anyio.fail_after(self._left_s):
                yield
        except TimeoutError as exc:
            message = f"no complete answer within {self._timeout_s:g} s"
            raise DeadlineExceededError(message) from exc
        finally:
            self._left_s -= loop.time() - began


async def _read_chunks(
    upstream: Upstream, response: httpx.Response, origin: Origin, patience: Patience
) -> AsyncGenerator[Answer, None]:
    async with aclosing(response):
        lines = _read_lines(response)
        while True:
            with upstream.translate_faults():
                async with patience.wait():
                    line = await anext(lines, None)
            if line is None:
                message = "the server that has the model ended its answer too early"
                raise ApiError(502, message, code="upstream_failed")
            if not line.startswith(b"data:"):
                continue
            data = line.removeprefix(b"data:").strip()
            if data == b"[DONE]":
                await _read_to_end(lines)
                return
            chunk = _parse(data)
            if "error" in chunk:
                raise _describe_failure(upstream, chunk)
            yield _sign(chunk, origin)


async def _read_lines(response: httpx.Response) -> AsyncGenerator[bytes, None]:
    """Yield the lines of a stream of events; other ends of lines may stand in a model's text."""
    rest = b""
    async for piece in response.aiter_bytes():
        *lines, rest = (rest + piece).split(b"\n")
        for line in lines:
            yield line
    yield rest


async def _read_to_end(lines: AsyncGenerator[bytes, None]) -> None:
    """Read what may come after the last event, so that the connection can be used again."""
    with suppress(httpx.HTTPError), anyio.move_on_after(_END_TIMEOUT_S):
        async for _ in lines:
            pass


def _describe(model: StoredModel) -> Origin:
    try:
        return describe_origin(model)
    except FileNotFoundError:
        raise ModelNotFoundError(f"model {model.id!r} has been deleted") from None


def _sign(answer: Answer, origin: Origin) -> Answer:
    """Have an answer name our model and its exact content, as our own do."""
    return {
        **answer,
        "model": origin["model_id"],
        "system_fingerprint": origin["system_fingerprint"],
    }


def _parse(content: bytes) -> Answer:
    try:
        answer = json.loads(content)
        if b"\\ud" in content.lower():  # halves of characters that no answer of ours could carry
            whole = json.dumps(answer, ensure_ascii=False).encode(errors="replace")
            answer = json.loads(whole)
    except ValueError as exc:
        raise _describe_nonsense() from exc
    if not isinstance(answer, dict):
        raise _describe_nonsense()
    return answer


def _describe_nonsense() -> ApiError:
    message = "the server that has the model answered with something that is no JSON object"
    return ApiError(502, message, code="upstream_failed")


def _translate_refusal(upstream: Upstream, response: httpx.Response) -> Exception:
    """Say in our words what a server refused; what is its own fault is for our log alone."""
    status = response.status_code
    message, param, code = _read_error(response)
    if status in (401, 403):
        logger.error("the server at %s refuses our key: %s", upstream.url, message)
        text = (
            "the server that has the model refuses our key; the operator names another by "
            "'key_variable' of 'upstreams'"
        )
        return ApiError(502, text, code=code)
    if status == 429:
        after = response.headers.get("retry-after", "")
        return OverloadedError(message, retry_after_s=int(after) if after.isdecimal() else 1)
    if status in (408, 504):
        return DeadlineExceededError(message)
    if status == 503:
        logger.warning("the server at %s is not available: %s", upstream.url, message)
        text = "the server that has the model is not available; try again in a moment"
        return ApiError(503, text, code="upstream_unavailable")
    if status in range(400, 500):
        return ApiError(status, message, param=param, code=code)
    return _describe_failure(upstream, {"status": status, "error": message})


def _describe_failure(upstream: Upstream, found: dict[str, Any]) -> ApiError:
    logger.error("the server at %s failed: %s", upstream.url, found)
    text = "the server that has the model failed; the logs have the details"
    return ApiError(502, text, code="upstream_failed")


def _read_error(response: httpx.Response) -> tuple[str, str | None, str | None]:
    """Take message, param and code out of an error body, or find words for one of another shape."""
    try:
        error = response.json()["error"]
        message, param, code = str(error["message"]), error.get("param"), error.get("code")
    except (ValueError, KeyError, TypeError, AttributeError):
        return f"the server that has the model answered {response.status_code}", None, None
    return (
        message,
        param if isinstance(param, str) else None,
        code if isinstance(code, str) else None,
    )
