"""The classifiers of one replica: loaded on demand in a thread, evicted by their last use."""

import asyncio
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from model_files.json_files import read_object
from model_files.weight_headers import read_weight_headers
from serving.errors import EngineDeadError, InvalidRequestError, OverloadedError
from serving.loading.config_sizes import check_config_sizes
from serving.pool.memory_budget import format_gb
from serving.served_task import Predictor
from serving.store.stored_model import StoredModel
from system.priority import lower_thread_priority
from system.threads import run_in_new_thread

logger = logging.getLogger(__name__)

_RETRY_S = 30.0
"""Seconds after which a model that could not be loaded is tried again."""
_LOAD_RETRY_AFTER_S = 5
_Key = tuple[str, tuple[int, int]]


@dataclass
class LoadedClassifier:
    """A model and its predictor; `last_used` is a monotonic time in seconds."""

    stored: StoredModel
    predictor: Predictor
    size_bytes: int
    last_used: float = field(default_factory=time.monotonic)


@dataclass(frozen=True)
class _Failure:
    error: EngineDeadError
    retry_at: float


class ClassifierPool:
    """Keeps at most `max_loaded` classifiers in `max_bytes`; evicts the least recently used.

    Requests that an evicted classifier computes are completed. Use from one event loop only;
    loading runs in other threads.
    """

    def __init__(
        self, load: Callable[[StoredModel], Predictor], max_loaded: int, max_bytes: int
    ) -> None:
        self._load_classifier = load
        self._max_loaded = max_loaded
        self._max_bytes = max_bytes
        self._loaded: dict[_Key, LoadedClassifier] = {}
        self._loading: dict[_Key, asyncio.Task[LoadedClassifier]] = {}
        self._reserved: dict[_Key, int] = {}
        self._failures: dict[_Key, _Failure] = {}

    def list_loaded(self) -> list[str]:
        """List the ids of the loaded models, sorted."""
        return sorted(loaded.stored.id for loaded in self._loaded.values())

    def measure_loaded(self) -> dict[str, int]:
        """Return the bytes of the loaded models by their ids."""
        return {loaded.stored.id: loaded.size_bytes for loaded in self._loaded.values()}

    def find(self, model: StoredModel) -> LoadedClassifier | None:
        """Return the classifier of exactly this model if it is loaded, and mark it as used."""
        loaded = self._loaded.get(_make_key(model))
        if loaded is not None:
            loaded.last_used = time.monotonic()
        return loaded

    async def get(self, model: StoredModel) -> LoadedClassifier:
        """Return the classifier of a model; load it unless that is done or in progress.

        Raises `EngineDeadError` if it cannot be loaded, `InvalidRequestError` if it is larger than
        the whole budget, `OverloadedError` if other models are being loaded in its place.
        """
        if (loaded := self.find(model)) is not None:
            return loaded
        return await asyncio.shield(self.start_loading(model))

    def start_loading(
        self, model: StoredModel, beside: StoredModel | None = None
    ) -> asyncio.Task[LoadedClassifier]:
        """Start to load a model unless that is in progress; return the task.

        The model `beside` is evicted only if memory does not fit both.
        """
        key = _make_key(model)
        if (task := self._loading.get(key)) is None:
            task = asyncio.create_task(self._load(model, beside))
            self._loading[key] = task
            task.add_done_callback(lambda done: self._end_loading(model, done))
        return task

    def _end_loading(self, model: StoredModel, task: asyncio.Task[LoadedClassifier]) -> None:
        key = _make_key(model)
        del self._loading[key]
        self._reserved.pop(key, None)
        if task.cancelled() or (error := task.exception()) is None:
            return
        if isinstance(error, EngineDeadError) and key not in self._failures:
            logger.error("classifier %s is not loaded: %s", model.id, error)
            self._failures[key] = _Failure(error, time.monotonic() + _RETRY_S)

    async def _load(self, model: StoredModel, beside: StoredModel | None) -> LoadedClassifier:
        key = _make_key(model)
        if (failure := self._failures.get(key)) is not None:
            if time.monotonic() < failure.retry_at:
                raise EngineDeadError(failure.error.message)
            del self._failures[key]
        started = time.monotonic()
        with model.lock_shared():
            size_bytes = await asyncio.to_thread(_measure, model)
            self._make_room(model, size_bytes, beside)
            self._reserved[key] = size_bytes
            await run_in_new_thread(_verify, model)
            predictor = await asyncio.to_thread(self._load_classifier, model)
        loaded = LoadedClassifier(model, predictor, size_bytes)
        self._loaded[key] = loaded
        while len(self._loaded) > self._max_loaded:  # `beside` was one more
            self._evict_oldest(keep=model)
        logger.info("loaded classifier %s in %.1f s", model.id, time.monotonic() - started)
        return loaded

    def _make_room(self, model: StoredModel, size_bytes: int, beside: StoredModel | None) -> None:
        if size_bytes > self._max_bytes:
            raise InvalidRequestError(
                f"model {model.id!r} needs {format_gb(size_bytes)}, and classifiers may take "
                f"{format_gb(self._max_bytes)} here",
                param="model",
                code="model_too_large",
            )
        for loaded in list(self._loaded.values()):  # deleted models first
            if not loaded.stored.exists():
                del self._loaded[_make_key(loaded.stored)]
        while not self._fits(size_bytes, beside):
            if not self._loaded:
                raise OverloadedError(
                    f"model {model.id!r} is not loaded, and other models are being loaded",
                    retry_after_s=_LOAD_RETRY_AFTER_S,
                )
            self._evict_oldest(keep=beside)

    def _fits(self, size_bytes: int, beside: StoredModel | None) -> bool:
        num_kept = 1 if beside is not None and _make_key(beside) in self._loaded else 0
        num_others = len(self._loaded) - num_kept + len(self._reserved)
        sizes = [loaded.size_bytes for loaded in self._loaded.values()]
        taken_bytes = sum(sizes) + sum(self._reserved.values())
        return num_others < self._max_loaded and taken_bytes + size_bytes <= self._max_bytes

    def _evict_oldest(self, keep: StoredModel | None) -> None:
        """Evict the least recently used classifier; the one to keep only if it is the last."""
        kept = None if keep is None else _make_key(keep)
        key = min(self._loaded, key=lambda key: (key == kept, self._loaded[key].last_used))
        logger.info("evicting classifier %s", self._loaded.pop(key).stored.id)


def _make_key(model: StoredModel) -> _Key:
    return model.id, model.edition


def _measure(model: StoredModel) -> int:
    """Return the bytes of a model's weights and tokenizer, or image processor.

    The store has compared the weights with the configuration before it published the model.
    """
    try:
        check_config_sizes(read_object(model.path / "config.json"))
        headers = read_weight_headers(model.path)
        companion_bytes = (model.path / model.served_task.companion).stat().st_size
    except (OSError, ValueError) as exc:
        raise EngineDeadError(f"model {model.id!r} cannot be loaded: {exc}") from exc
    return sum(header.size_bytes for header in headers.values()) + companion_bytes


def _verify(model: StoredModel) -> None:
    lower_thread_priority()  # verification should not slow down the models that answer
    model.verify_before_loading()
