"""Relay of text requests to upstreams, with the models and aliases of the model store."""

import asyncio
import json
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager, suppress
from typing import IO

import anyio
import httpx

from apps.errors import ApiError
from apps.settings import UpstreamSettings
from apps.sse import DONE, read_data
from apps.upstream.upstream_client import UnreachableError, Upstream
from serving.errors import (
    DeadlineExceededError,
    InvalidRequestError,
    ModelNotFoundError,
    OverloadedError,
)
from serving.store.aliases import Alias
from serving.store.model_store import ModelStore
from serving.store.stored_model import StoredModel
from serving.wire import AnswerOrigin, describe_origin

logger = logging.getLogger(__name__)

LISTING_INTERVAL_S = 2.0
_END_TIMEOUT_S = 0.1

Answer = dict[str, object]


class UpstreamProxy:
    """Sends requests to the first upstream that lists the model, and returns the responses.

    An alias resolves to the model that it points to or, while no upstream has that one, to its most
    recent earlier model that an upstream has. A listed model is locked against deletion from the
    store. `timeout_s` limits the total time that a request waits for upstreams, not the time that a
    slow client takes to read.

    Between `open` and `close`, the upstreams' lists of models are polled in the background;
    requests do not wait for that. All timeouts of httpx calls use anyio: where asyncio itself
    cancels, httpx can lose a connection that it was about to close.
    """

    def __init__(
        self, models: ModelStore, upstreams: Sequence[UpstreamSettings], *, timeout_s: float
    ) -> None:
        self._models = models
        self._upstreams = [Upstream(settings) for settings in upstreams]
        self._timeout_s = timeout_s
        self._locked: dict[str, IO[bytes]] = {}
        self._polling_scope = anyio.CancelScope()
        self._polling: asyncio.Task[None] | None = None

    async def open(self) -> None:
        """Request the list of models from every upstream, and start polling it."""
        await asyncio.gather(*map(self._update_models, self._upstreams))
        self._polling = asyncio.create_task(self._poll_all())

    async def close(self) -> None:
        """Stop polling, close the connections and release the models."""
        if self._polling is not None:
            self._polling_scope.cancel()
            await self._polling
        for upstream in self._upstreams:
            await upstream.close()
        self._lock_models(frozenset())

    async def ask(
        self, path: str, body: Mapping[str, object]
    ) -> tuple[AnswerOrigin, Answer | AsyncGenerator[Answer, None]]:
        """Send a request to an upstream; return the origin of its model, and the response.

        The response is whole, or in chunks if it is streamed. Closing the chunks closes the
        connection to the upstream, and so does cancellation.
        """
        budget = WaitBudget(self._timeout_s)
        upstream, origin, response = await self._send(path, body, budget)
        if response.headers.get("content-type", "").startswith("text/event-stream"):
            return origin, _read_chunks(upstream, response, origin, budget)
        async with aclosing(response):
            with upstream.translate_faults():
                async with budget.spend():
                    content = await response.aread()
        return origin, _set_origin(_parse(content), origin)

    async def check(self) -> None:
        """Raise if no upstream has a model."""
        if not any(upstream.listed for upstream in self._upstreams):
            raise ApiError(503, "no server has a model", code="upstream_unavailable")

    async def _poll_all(self) -> None:
        with self._polling_scope:
            async with anyio.create_task_group() as group:
                for upstream in self._upstreams:
                    group.start_soon(self._poll, upstream)

    async def _poll(self, upstream: Upstream) -> None:
        while True:
            await anyio.sleep(LISTING_INTERVAL_S)
            try:
                await self._update_models(upstream)
            except Exception:  # whatever it is, polling must continue
                logger.exception("asking the server at %s failed; trying again", upstream.url)

    async def _update_models(self, upstream: Upstream) -> None:
        await upstream.update_models()
        self._lock_models(frozenset().union(*(one.listed or () for one in self._upstreams)))

    async def _send(
        self, path: str, body: Mapping[str, object], budget: "WaitBudget"
    ) -> tuple[Upstream, AnswerOrigin, httpx.Response]:
        """Send a request and return the response once it begins; raises if it is refused."""
        async with budget.spend():
            upstream, origin, response = await self._post(path, body)
            if response.status_code == 404:  # the model may have gone since it was listed
                await response.aclose()
                await self._update_models(upstream)
                upstream, origin, response = await self._post(path, body)
            if response.is_success:
                return upstream, origin, response
            async with aclosing(response):
                with upstream.translate_faults():
                    await response.aread()
            raise _translate_refusal(upstream, response)

    async def _post(
        self, path: str, body: Mapping[str, object]
    ) -> tuple[Upstream, AnswerOrigin, httpx.Response]:
        """Send a request to an upstream that has the model and can be reached."""
        while True:  # ends, since an unreachable server lists nothing any more
            upstream, model = self._choose(body)
            origin = _describe(model)
            try:
                return upstream, origin, await upstream.post(path, {**body, "model": model.id})
            except UnreachableError:
                continue

    def _choose(self, body: Mapping[str, object]) -> tuple[Upstream, StoredModel]:
        name = body.get("model")
        if not isinstance(name, str) or not name:
            raise InvalidRequestError(
                "'model' is required", param="model", code="missing_required_parameter"
            )
        listings = [upstream.listed for upstream in self._upstreams]
        candidates = self._find_candidates(name)
        if candidates:
            candidates[0].check_answers("text")
        for model in candidates:
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
        """List the models that a name may resolve to, the preferred one first."""
        alias: Alias | None = None
        if self._models.find(name) is None:
            alias = self._models.read_aliases().get(name)
        if alias is None:
            return [self._models.resolve(name)]
        found = map(self._models.find, [alias.model_id, *alias.list_earlier()])
        return [model for model in found if model is not None]

    def _lock_models(self, listed: frozenset[str]) -> None:
        """Lock the listed models that are in the store, and release all others."""
        for model_id in self._locked.keys() - listed:
            self._locked.pop(model_id).close()
        for model_id in listed - self._locked.keys():
            model = self._models.find(model_id)
            if model is None:
                continue
            try:
                self._locked[model_id] = model.lock_shared()
            except ModelNotFoundError:
                logger.warning("model %s has been deleted while a server has it", model_id)


class WaitBudget:
    """The time that a request may still wait for an upstream, not counting its client's time."""

    def __init__(self, timeout_s: float) -> None:
        self._timeout_s = self._left_s = timeout_s

    @asynccontextmanager
    async def spend(self) -> AsyncIterator[None]:
        """Subtract the time that the body takes; raises `DeadlineExceededError` if none is left."""
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
    upstream: Upstream, response: httpx.Response, origin: AnswerOrigin, budget: WaitBudget
) -> AsyncGenerator[Answer, None]:
    async with aclosing(response):
        events = read_data(response.aiter_bytes(), accepts_cut_end=True)
        while True:
            with upstream.translate_faults():
                async with budget.spend():
                    data = await anext(events, None)
            if data is None:
                message = "the server that has the model ended its answer too early"
                raise ApiError(502, message, code="upstream_failed")
            if data == DONE:
                await _read_to_end(events)
                return
            chunk = _parse(data)
            if "error" in chunk:
                raise _describe_failure(upstream, chunk)
            yield _set_origin(chunk, origin)


async def _read_to_end(events: AsyncGenerator[bytes, None]) -> None:
    """Read what may follow the last event, so that the connection can be reused."""
    with suppress(httpx.HTTPError), anyio.move_on_after(_END_TIMEOUT_S):
        async for _ in events:
            pass


def _describe(model: StoredModel) -> AnswerOrigin:
    try:
        return describe_origin(model)
    except FileNotFoundError:
        raise ModelNotFoundError(f"model {model.id!r} has been deleted") from None


def _set_origin(answer: Answer, origin: AnswerOrigin) -> Answer:
    """Set our model's id and fingerprint in a response, as the generators do."""
    return {
        **answer,
        "model": origin.model_id,
        "system_fingerprint": origin.system_fingerprint,
    }


def _parse(content: bytes) -> Answer:
    try:
        answer = json.loads(content)
        if b"\\ud" in content.lower():  # lone surrogates, which no response can contain
            whole = json.dumps(answer, ensure_ascii=False).encode(errors="replace")
            answer = json.loads(whole)
    except ValueError as exc:
        raise _describe_unexpected_body() from exc
    if not isinstance(answer, dict):
        raise _describe_unexpected_body()
    return answer


def _describe_unexpected_body() -> ApiError:
    message = "the server that has the model answered with something that is no JSON object"
    return ApiError(502, message, code="upstream_failed")


def _translate_refusal(upstream: Upstream, response: httpx.Response) -> Exception:
    """Translate an upstream's refusal; details of its own faults are only logged."""
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


def _describe_failure(upstream: Upstream, found: Mapping[str, object]) -> ApiError:
    logger.error("the server at %s failed: %s", upstream.url, found)
    text = "the server that has the model failed; the logs have the details"
    return ApiError(502, text, code="upstream_failed")


def _read_error(response: httpx.Response) -> tuple[str, str | None, str | None]:
    """Return message, param and code of an error body; a general message for other bodies."""
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
