"""Requests for text that other servers answer, with the models and aliases of our store."""

import asyncio
import json
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import aclosing, asynccontextmanager
from typing import IO, Any

import httpx

from apps.errors import ApiError
from apps.upstream import UPSTREAM_KEY_VARIABLE, Upstream
from serving.aliases import Alias
from serving.errors import (
    DeadlineExceededError,
    InvalidRequestError,
    ModelNotFoundError,
    OverloadedError,
)
from serving.generator import Origin, describe_origin
from serving.model_store import ModelStore, StoredModel

logger = logging.getLogger(__name__)

Answer = dict[str, Any]


class UpstreamRelay:
    """Hands requests on to the first of some servers that lists the model, and answers back.

    An alias stands for the model that it points to; while no server has that one, for the last
    before it that one has. A model that is listed cannot be deleted from the store. `timeout_s` is
    for all waiting of a request for the servers, not for a client that reads slowly.
    """

    def __init__(self, models: ModelStore, urls: Sequence[str], *, timeout_s: float) -> None:
        self._models = models
        self._upstreams = [Upstream(url) for url in urls]
        self._timeout_s = timeout_s
        self._held: dict[str, IO[bytes]] = {}

    async def close(self) -> None:
        """Close the connections, and let go of the models."""
        for upstream in self._upstreams:
            await upstream.close()
        self._hold(frozenset())

    async def ask(
        self, path: str, body: dict[str, Any]
    ) -> tuple[Origin, Answer | AsyncGenerator[Answer, None]]:
        """Have a request answered, and say what answers: whole, or in chunks if it is streamed.

        The first chunk is there when this returns; closing the chunks closes the connection to the
        server, and so does leaving early.
        """
        patience = Patience(self._timeout_s)
        upstream, origin, response = await self._send(path, body, patience)
        if response.headers.get("content-type", "").startswith("text/event-stream"):
            chunks = _read_chunks(upstream, response, origin, patience)
            first = await anext(chunks, None)
            return origin, _start_with(first, chunks)
        async with _closing(response):
            with upstream.translate_faults():
                async with patience.wait():
                    content = await response.aread()
        return origin, _sign(_parse(content), origin)

    async def check(self) -> None:
        """Raise if no server has a model."""
        if not any(await self._list_models()):
            raise ApiError(503, "no server has a model", code="upstream_unavailable")

    async def _send(
        self, path: str, body: dict[str, Any], patience: "Patience"
    ) -> tuple[Upstream, Origin, httpx.Response]:
        """Have the right server begin its answer; raises what it refuses."""
        async with patience.wait():
            for is_last_try in (False, True):
                upstream, model = await self._choose(body)
                origin = describe_origin(model)  # of one that is gone by now, before we ask
                response = await upstream.post(path, {**body, "model": model.id})
                if response.status_code != 404 or is_last_try:
                    break
                await response.aclose()
                upstream.doubt()  # it has gone since it was listed
            if response.is_success:
                return upstream, origin, response
            async with _closing(response):
                with upstream.translate_faults():
                    await response.aread()
            raise _translate_refusal(upstream, response)

    async def _choose(self, body: dict[str, Any]) -> tuple[Upstream, StoredModel]:
        name = body.get("model")
        if not isinstance(name, str) or not name:
            raise InvalidRequestError(
                "'model' is required", param="model", code="missing_required_parameter"
            )
        candidates = self._find_candidates(name)
        listings = await self._list_models()
        for model in candidates:
            for upstream, listed in zip(self._upstreams, listings, strict=True):
                if listed is not None and model.id in listed:
                    return upstream, model
        present = ", ".join(sorted(set().union(*filter(None, listings)))) or "none"
        silent = "; a server does not answer" if None in listings else ""
        raise ApiError(
            503,
            f"{name!r} is in the store, but no server has it; they have: {present}{silent}",
            param="model",
            code="model_not_served",
        )

    def _find_candidates(self, name: str) -> list[StoredModel]:
        """List the models that a name may stand for, the wanted one first."""
        alias: Alias | None = None
        if not self._models.has(name):
            alias = self._models.read_aliases().get(name)
        if alias is None:
            return [self._models.resolve(name)]
        found = map(self._models.find, [alias.model_id, *alias.list_earlier()])
        return [model for model in found if model is not None]

    async def _list_models(self) -> list[frozenset[str] | None]:
        listings = await asyncio.gather(*(one.list_models() for one in self._upstreams))
        self._hold(frozenset().union(*filter(None, listings)))
        return listings

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
            async with asyncio.timeout(max(0.0, self._left_s)):
                yield
        except TimeoutError as exc:
            message = f"no complete answer within {self._timeout_s:g} s"
            raise DeadlineExceededError(message) from exc
        finally:
            self._left_s -= loop.time() - began


async def _read_chunks(
    upstream: Upstream, response: httpx.Response, origin: Origin, patience: Patience
) -> AsyncGenerator[Answer, None]:
    async with _closing(response):
        lines = response.aiter_lines()
        while True:
            with upstream.translate_faults():
                async with patience.wait():
                    line = await anext(lines, None)
            if line is None:
                message = "the server that has the model ended its answer too early"
                raise ApiError(502, message, code="upstream_failed")
            if not line.startswith("data:"):
                continue
            data = line.removeprefix("data:").strip()
            if data == "[DONE]":
                return
            chunk = _parse(data)
            if "error" in chunk:
                raise _describe_failure(upstream, chunk)
            yield _sign(chunk, origin)


async def _start_with(
    first: Answer | None, chunks: AsyncGenerator[Answer, None]
) -> AsyncGenerator[Answer, None]:
    """Put back the chunk that was taken to see whether there is one."""
    async with aclosing(chunks):
        if first is not None:
            yield first
        async for chunk in chunks:
            yield chunk


@asynccontextmanager
async def _closing(response: httpx.Response) -> AsyncIterator[None]:
    try:
        yield
    finally:
        await response.aclose()


def _sign(answer: Answer, origin: Origin) -> Answer:
    """Have an answer name our model and its exact content, as our own do."""
    return {
        **answer,
        "model": origin["model_id"],
        "system_fingerprint": origin["system_fingerprint"],
    }


def _parse(content: str | bytes) -> Answer:
    try:
        answer = json.loads(content)
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
        hint = f"the operator sets {UPSTREAM_KEY_VARIABLE}"
        return ApiError(502, f"the server that has the model refuses our key; {hint}", code=code)
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
