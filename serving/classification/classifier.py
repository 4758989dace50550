"""The classifier: a Serve deployment that classifies texts with several models, on the CPU."""

import asyncio
import logging
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from pydantic import Field
from ray import serve

from serving.classification.classifier_pool import ClassifierPool, LoadedClassifier
from serving.classification.wire import Classification, ClassifyAnswer, ClassifyCall
from serving.errors import DeadlineExceededError, EngineDeadError, ServingError
from serving.loading.memory import find_cpu_budget
from serving.metrics import GeneratorMetrics, RequestRecord
from serving.refusals import return_refusals
from serving.serve_log import log_to_serve
from serving.settings import ClassifierSettings
from serving.store.model_store import ModelStore
from serving.store.stored_model import StoredModel
from serving.wire import describe_origin
from storage.layout import open_storage
from storage.privacy import keep_files_private
from system.library_imports import import_transformers
from system.threads import DedicatedThread

if TYPE_CHECKING:
    from serving.classification.text_classifier import EncodedText, TextClassifier

logger = logging.getLogger(__name__)

CLASSIFIER_CPUS = 0.1
"""Logical CPUs of one replica; the application subtracts them from the CPUs for fine-tuning."""
CLASSIFIER_CAPACITY = 64
"""Requests that one replica works on at once; as many may be queued."""
MAX_BATCH_SIZE = 64
BATCH_WAIT_S = 0.002

_expected = return_refusals(ServingError)
_Scores = tuple[float, ...]


class ClassifierReplicaSettings(ClassifierSettings):
    """The settings of one classifier replica."""

    storage: str = Field(description="The storage root, a path.")
    log_texts: bool = Field(False, description="Write requests and their answers into the log.")


class _Item(NamedTuple):
    """One input of a request, and the model that classifies it."""

    loaded: LoadedClassifier
    encoded: "EncodedText"


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
        self._answering: dict[str, StoredModel] = {}  # the model that answers for each alias

    @_expected
    async def classify(self, call: ClassifyCall) -> ClassifyAnswer:
        """Classify the inputs of a request; returns a `Refusal` in place of a `ServingError`."""
        with self._metrics.observe_request(call) as record:
            try:
                async with asyncio.timeout(self._timeout_s):
                    return await self._classify(call, record)
            except TimeoutError as exc:
                raise DeadlineExceededError(f"no answer within {self._timeout_s:g} s") from exc

    async def _classify(self, call: ClassifyCall, record: RequestRecord) -> ClassifyAnswer:
        request = call.content
        loaded = await self._find_model(request.model)
        record.model_id = loaded.stored.id
        classifier = loaded.classifier
        encoded = await self._encoding.run(
            classifier.encode, request.input, truncates=request.truncate
        )
        record.num_prompt_tokens = sum(len(one.input_ids) for one in encoded)
        scores = await asyncio.gather(*(self._predict(_Item(loaded, one)) for one in encoded))
        results: list[Classification] = []
        for found in scores:
            if isinstance(found, EngineDeadError):
                raise found
            results.append(classifier.describe(found, request.top_k))
        if record.texts is not None:
            record.texts.update({index: str(result) for index, result in enumerate(results)})
        origin = describe_origin(loaded.stored)
        return ClassifyAnswer(origin, tuple(results), record.num_prompt_tokens)

    async def _find_model(self, name: str) -> LoadedClassifier:
        """Return the classifier that answers for an id or alias, and load it if necessary."""
        model = self._models.resolve(name)
        model.check_task("sequence_classification")
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

    async def _predict(self, item: _Item) -> _Scores | EngineDeadError:
        """Compute the scores of one input."""
        (scores,) = await self._predict_all([item])
        return scores

    async def _predict_all(self, items: list[_Item]) -> list[_Scores | EngineDeadError]:
        """Compute the scores of inputs, each with its own model."""
        return await self._computing.run(compute_scores, items)


class ClassifierDeployment(ClassifierReplica):
    """A replica in Serve, which computes the inputs of concurrent requests together."""

    @serve.batch(max_batch_size=MAX_BATCH_SIZE, batch_wait_timeout_s=BATCH_WAIT_S)
    async def _predict(self, items: list[_Item]) -> list[_Scores | EngineDeadError]:
        return await self._predict_all(items)


def compute_scores(items: Sequence[_Item]) -> list[_Scores | EngineDeadError]:
    """Compute the scores of inputs by model; a model that fails affects only its own inputs."""
    by_model: dict[int, list[int]] = {}
    for index, item in enumerate(items):
        by_model.setdefault(id(item.loaded), []).append(index)
    results: list[_Scores | EngineDeadError] = [()] * len(items)
    for indices in by_model.values():
        loaded = items[indices[0]].loaded
        found: Sequence[_Scores | EngineDeadError]
        try:
            found = loaded.classifier.predict([items[index].encoded for index in indices])
        except Exception:  # other models in the batch must not fail with this one
            logger.exception("model %s failed", loaded.stored.id)
            message = f"model {loaded.stored.id!r} failed; the server's log has the cause"
            found = [EngineDeadError(message)] * len(indices)
        for index, scores in zip(indices, found, strict=True):
            results[index] = scores
    return results


def _load_classifier(path: Path) -> "TextClassifier":
    import_transformers()
    from serving.classification.text_classifier import TextClassifier
    from serving.engine.process_settings import prepare_process

    prepare_process(num_threads=1)
    return TextClassifier.load(path)


Classifier = serve.deployment(
    name="Classifier",
    max_ongoing_requests=CLASSIFIER_CAPACITY,
    max_queued_requests=CLASSIFIER_CAPACITY,
    graceful_shutdown_timeout_s=10.0,
    ray_actor_options={"num_cpus": CLASSIFIER_CPUS},
)(ClassifierDeployment)
"""The deployment: `Classifier.bind(ClassifierReplicaSettings(...))`."""
