"""The classifier: a Serve deployment that classifies texts with several models, on the CPU."""

import asyncio
import logging
import struct
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from typing import NamedTuple

from pydantic import Field
from ray import serve

from serving.classification.batcher import Batcher
from serving.classification.class_scores import rank_labels
from serving.classification.classifier_pool import ClassifierPool, LoadedClassifier
from serving.classification.embedding_request import EmbeddingRequest
from serving.classification.passes import plan_passes
from serving.classification.request import ClassifyRequest
from serving.classification.wire import ClassifyAnswer, ClassifyCall, EmbedAnswer, EmbedCall
from serving.errors import (
    DeadlineExceededError,
    EngineDeadError,
    InvalidRequestError,
    OverloadedError,
    ServingError,
)
from serving.loading.memory import find_cpu_budget
from serving.metrics import GeneratorMetrics, RequestRecord
from serving.refusals import return_refusals
from serving.serve_log import log_to_serve
from serving.served_task import AnswerKind, EncodedInput, Predictor
from serving.settings import ClassifierSettings
from serving.store.model_store import ModelStore
from serving.store.stored_model import StoredModel
from serving.wire import describe_origin
from storage.layout import open_storage
from storage.privacy import keep_files_private
from system.library_imports import import_transformers
from system.threads import DedicatedThread

logger = logging.getLogger(__name__)

CLASSIFIER_CPUS = 0.1
"""Logical CPUs of one replica; the application subtracts them from the CPUs for fine-tuning."""
CLASSIFIER_CAPACITY = 64
"""Requests that one replica works on at once; as many may be queued."""
MAX_BATCH_SIZE = 64
MAX_HELD_BYTES = 1 << 30
"""Most bytes of the processed images of one request, and of all requests together."""
_HELD_RETRY_AFTER_S = 1

_expected = return_refusals(ServingError)
_Row = Sequence[float]


class ClassifierReplicaSettings(ClassifierSettings):
    """The settings of one classifier replica."""

    storage: str = Field(description="The storage root, a path.")
    log_texts: bool = Field(False, description="Write requests and their answers into the log.")


class _Item(NamedTuple):
    """One input of a request, and the model that classifies it."""

    loaded: LoadedClassifier
    encoded: EncodedInput


class ClassifierReplica:
    """Classifies texts with the model that each request names.

    When an alias moves, its previous model answers until the new one is loaded. Libraries are
    imported when the first model is loaded.
    """

    def __init__(self, settings: ClassifierReplicaSettings) -> None:
        log_to_serve()
        keep_files_private()
        self._timeout_s = settings.request_timeout_s
        self._models = ModelStore(open_storage(settings.storage))
        # The generators have half of the free memory, so these replicas share a quarter.
        max_bytes = settings.max_loaded_bytes or find_cpu_budget(2 * settings.max_replicas)
        self._pool = ClassifierPool(_load_classifier, settings.max_loaded_models, max_bytes)
        self._metrics = GeneratorMetrics(log_texts=settings.log_texts)
        self._encoding = DedicatedThread("encode-texts")
        self._computing = DedicatedThread("classify-texts")
        self._batcher = Batcher(choose_pass, self._predict, MAX_BATCH_SIZE)
        self._held_bytes = 0  # of encoded inputs
        self._answering: dict[str, StoredModel] = {}  # the model that answers for each alias

    @_expected
    async def classify(self, call: ClassifyCall) -> ClassifyAnswer:
        """Classify the inputs of a request; returns a `Refusal` in place of a `ServingError`."""
        request = call.content
        with self._metrics.observe_request(call) as record:
            async with self._limit_time():
                loaded = await self._find_model(request.model, "labels", record)
                rows = await self._compute(loaded, request, len(request.inputs), record)
            results = tuple(rank_labels(loaded.predictor, row, request.top_k) for row in rows)
            if record.texts is not None:
                record.texts.update({index: str(result) for index, result in enumerate(results)})
            return ClassifyAnswer(describe_origin(loaded.stored), results, record.num_prompt_tokens)

    @_expected
    async def embed(self, call: EmbedCall) -> EmbedAnswer:
        """Compute the vectors of texts; returns a `Refusal` in place of a `ServingError`."""
        request = call.content
        with self._metrics.observe_request(call) as record:
            async with self._limit_time():
                loaded = await self._find_model(request.model, "vectors", record)
                rows = await self._compute(loaded, request, len(request.input), record)
            check_dimensions(request, len(rows[0]))
            vectors = tuple(struct.pack(f"<{len(row)}f", *row) for row in rows)
            return EmbedAnswer(describe_origin(loaded.stored), vectors, record.num_prompt_tokens)

    @asynccontextmanager
    async def _limit_time(self) -> AsyncIterator[None]:
        try:
            async with asyncio.timeout(self._timeout_s):
                yield
        except TimeoutError as exc:
            raise DeadlineExceededError(f"no answer within {self._timeout_s:g} s") from exc

    async def _compute(
        self,
        loaded: LoadedClassifier,
        request: ClassifyRequest | EmbeddingRequest,
        num_inputs: int,
        record: RequestRecord,
    ) -> list[_Row]:
        """Return the row of each input.

        Raises `InvalidRequestError` if its inputs take too much memory, `OverloadedError` if they
        do with those of other requests, and `EngineDeadError` if the model fails.
        """
        with self._hold(num_inputs * loaded.predictor.input_bytes):
            encoded = await self._encoding.run(loaded.predictor.encode, request)
            record.num_prompt_tokens = sum(one.num_tokens for one in encoded)
            return await self._batcher.run([_Item(loaded, one) for one in encoded])

    @contextmanager
    def _hold(self, num_bytes: int) -> Iterator[None]:
        """Count the bytes of encoded inputs; refuse more of them while they are too many."""
        if num_bytes > MAX_HELD_BYTES:
            raise InvalidRequestError(
                f"the images have {num_bytes:,} bytes in the size that the model takes, expected "
                f"at most {MAX_HELD_BYTES:,} in a request; send several requests",
                param="images",
            )
        if self._held_bytes + num_bytes > MAX_HELD_BYTES:
            raise OverloadedError(
                "too many images are being classified; try again later",
                retry_after_s=_HELD_RETRY_AFTER_S,
            )
        self._held_bytes += num_bytes
        try:
            yield
        finally:
            self._held_bytes -= num_bytes

    async def _find_model(
        self, name: str, kind: AnswerKind, record: RequestRecord
    ) -> LoadedClassifier:
        """Return the model that answers for an id or alias; load it if necessary, and record it."""
        model = self._models.resolve(name)
        model.check_answers(kind)
        loaded = await self._find_loaded(model, name)
        record.model_id = loaded.stored.id
        self._metrics.record_sizes(self._pool.measure_loaded())
        return loaded

    async def _find_loaded(self, model: StoredModel, name: str) -> LoadedClassifier:
        current = self._answering.get(name)
        if name == model.id:
            return await self._pool.get(model)
        if current is None or current == model or not current.exists():
            loaded = await self._pool.get(model)
        elif (found := self._pool.find(model)) is not None:
            loaded = found
        elif (previous := self._pool.find(current)) is not None:
            self._pool.start_loading(model, beside=current)
            return previous
        else:
            loaded = await self._pool.get(model)
        if loaded.stored != current:
            logger.info("alias %s is answered by %s", name, loaded.stored.id)
            self._answering[name] = loaded.stored
        return loaded

    async def _predict(self, items: list[_Item]) -> Sequence[_Row]:
        """Compute the rows of one pass."""
        return await self._computing.run(compute_rows, items)


def choose_pass(items: Sequence[_Item]) -> list[int]:
    """Return the inputs of the next forward pass: the first, and those like it.

    That is of the same model and of similar lengths. The others wait for a pass with inputs that
    arrive until then, so that a pass does not end for all clients at once.
    """
    own = [index for index, item in enumerate(items) if item.loaded is items[0].loaded]
    passes = plan_passes([max(1, items[index].encoded.num_tokens) for index in own])
    return next([own[place] for place in chosen] for chosen in passes if 0 in chosen)


def compute_rows(items: Sequence[_Item]) -> Sequence[_Row]:
    """Compute the rows of inputs of one model; raises `EngineDeadError` if it fails."""
    loaded = items[0].loaded
    try:
        return loaded.predictor.predict([item.encoded for item in items])
    except Exception as exc:
        logger.exception("model %s failed", loaded.stored.id)
        message = f"model {loaded.stored.id!r} failed; the server's log has the cause"
        raise EngineDeadError(message) from exc


def _load_classifier(model: StoredModel) -> Predictor:
    import_transformers()
    from serving.engine.process_settings import prepare_process

    prepare_process(num_threads=1)
    predictor = model.served_task.open_predictor(model.path)
    assert predictor is not None, "models that a generator serves are refused"
    return predictor


def check_dimensions(request: EmbeddingRequest, num_dimensions: int) -> None:
    """Raise `InvalidRequestError` for a number of dimensions that is not the model's."""
    if request.dimensions not in (None, num_dimensions):
        raise InvalidRequestError(
            f"dimensions is {request.dimensions}, and vectors of the model have {num_dimensions}, "
            "which cannot be shortened; leave it out",
            param="dimensions",
        )


Classifier = serve.deployment(
    name="Classifier",
    max_ongoing_requests=CLASSIFIER_CAPACITY,
    max_queued_requests=CLASSIFIER_CAPACITY,
    graceful_shutdown_timeout_s=10.0,
    ray_actor_options={"num_cpus": CLASSIFIER_CPUS},
)(ClassifierReplica)
"""The deployment: `Classifier.bind(ClassifierReplicaSettings(...))`."""
