"""The computing part of an engine: a model and the thread that generates with it."""

import logging
import threading
from collections.abc import Iterable, Sequence
from pathlib import Path

from transformers import ContinuousBatchingConfig, PreTrainedModel, PreTrainedTokenizerBase

from model_files.end_ids import list_end_ids
from serving.adapters.adapter_bank import AdapterBank
from serving.cpu.packed_linear import pack_linear_layers
from serving.engine.continuous_batching import LikelihoodRecorder, start_manager
from serving.engine.messages import (
    AdapterLoading,
    AdapterUnloading,
    Generation,
    Likelihood,
    ModelFacts,
    Progress,
    Report,
    ReportHandler,
    Scoring,
    find_adapter,
)
from serving.engine.process_settings import prepare_process
from serving.engine.prompt_logprobs import score_tokens
from serving.errors import EngineDeadError
from serving.loading.generation_defaults import find_sampling
from serving.loading.loading import load_model
from serving.settings import EngineSettings
from serving.transformers_internals import (
    ContinuousBatchingManager,
    GenerationOutput,
    accepts_requests,
    count_active_requests,
    count_cache_tokens,
    find_cache_use,
)

logger = logging.getLogger(__name__)

_STOP_TIMEOUT_S = 30.0

LoadedWeights = tuple[PreTrainedModel, PreTrainedTokenizerBase]


def read_model(path: Path, settings: EngineSettings) -> LoadedWeights:
    """Load a model directory and prepare it for an engine in this process.

    Raises `EngineDeadError` for a model that does not load completely.
    """
    prepare_process(settings.num_threads)
    model, tokenizer = load_model(path)
    pack_linear_layers(model)
    return model, tokenizer


class EngineCore:
    """Generates for all requests in one thread and reports their progress to `handle_report`.

    `handle_report` is called from the core's threads. The constructor blocks until the thread has
    started, and raises `EngineDeadError` if it cannot start. `manager` is the one of transformers.
    """

    def __init__(
        self, loaded: LoadedWeights, settings: EngineSettings, handle_report: ReportHandler
    ) -> None:
        model, tokenizer = loaded
        self._model = model
        self._handle_report = handle_report
        self._likelihoods = LikelihoodRecorder()
        self._num_reported: dict[str, int] = {}  # tokens reported so far, by request id
        self._scored: set[str] = set()
        self._lock = threading.Lock()
        self._scoring = threading.Lock()
        max_rows = max(settings.max_batch_tokens, settings.max_running_requests)
        self._adapters = AdapterBank(model, settings.page_size, max_rows)
        vocab_size = int(model.config.get_text_config().vocab_size)
        try:
            self.manager = start_manager(
                model,
                _configure_batching(settings),
                vocab_size,
                self._likelihoods,
                self._deliver,
                self._adapters,
            )
        except (MemoryError, ValueError, RuntimeError) as exc:
            name = Path(model.name_or_path).name
            raise EngineDeadError(f"no engine could be started for {name!r}: {exc}") from exc
        self.facts = ModelFacts(
            context_length=_find_context_length(model, self.manager),
            vocab_size=vocab_size,
            eos_ids=tuple(sorted(list_end_ids(model.generation_config, tokenizer))),
            sampling=find_sampling(model.generation_config),
        )

    def is_alive(self) -> bool:
        """Return whether the generating thread is alive and accepts requests."""
        return accepts_requests(self.manager)

    def generate(self, command: Generation) -> None:
        """Start to generate; raises `EngineDeadError` if the thread has stopped."""
        if command.sampling.num_top_logprobs is not None:
            self._likelihoods.start(command.request_id)
        with self._lock:
            self._num_reported[command.request_id] = 0
        accepted = self.manager.add_request(
            list(command.prompt_ids),
            request_id=command.request_id,
            max_new_tokens=command.num_new_tokens,
            streaming=command.is_streamed,
            eos_token_id=list(command.end_ids) or -1,
            **command.sampling.to_processor_kwargs(self.facts.vocab_size),
        )
        # If the thread died after its last read of the queue, it never sees this request.
        if accepted is None or not self.is_alive():
            raise EngineDeadError("the model's engine has stopped")

    def score(self, command: Scoring) -> None:
        """Start to compute the log-probability of each token but the first, given those before.

        Generation pauses meanwhile, because both use all threads.
        """
        with self._lock:
            self._scored.add(command.request_id)
        # Use a thread that ends with the request. OpenMP (libgomp) keeps a team of workers for each
        # live thread that has computed. Once there are more workers than cores, the workers sleep
        # between two operators instead of spinning. With two threads on two cores that cost a third
        # of the tokens per second.
        threading.Thread(target=self._score, args=[command], name="score").start()

    def load_adapter(self, command: AdapterLoading) -> None:
        """Start to load an adapter, which ends with a report; generation continues."""
        # A thread that ends, as in `score`.
        threading.Thread(target=self._load_adapter, args=[command], name="load-adapter").start()

    def unload_adapter(self, command: AdapterUnloading) -> None:
        """Free the memory of an adapter that no request uses."""
        self._adapters.unload(command.number)

    def cancel(self, request_id: str) -> None:
        """Cancel a request of any kind, if it has not ended; its progress is no longer reported."""
        with self._lock:
            self._scored.discard(request_id)
            is_generating = self._num_reported.pop(request_id, None) is not None
        self._likelihoods.discard(request_id)
        if is_generating:
            self.manager.cancel_request(request_id)

    def close(self) -> None:
        """Stop the thread, fail running requests and free the weights; block until done."""
        if not hasattr(self, "_model"):
            return
        if self.manager.is_running():
            self.manager.stop(block=True, timeout=_STOP_TIMEOUT_S, hard_stop=True)
        self.manager.destroy()
        # Remaining references to this core must not keep the weights in memory.
        self.manager.model = None
        del self._model

    def _deliver(self, outputs: Iterable[GenerationOutput]) -> None:
        progress = [new for output in outputs if (new := self._find_progress(output)) is not None]
        self._report(progress)

    def _report(self, progress: Sequence[Progress]) -> None:
        num_running = count_active_requests(self.manager)
        self._handle_report(Report(progress, num_running, find_cache_use(self.manager)))

    def _find_progress(self, output: GenerationOutput) -> Progress | None:
        """Return the progress of a request since its last report; None if it was cancelled."""
        request_id, is_finished = output.request_id, output.is_finished()
        with self._lock:
            num_reported = self._num_reported.get(request_id)
            if num_reported is None:
                return None
            if is_finished:
                del self._num_reported[request_id]
            else:
                self._num_reported[request_id] = len(output.generated_tokens)
        likelihoods = self._likelihoods.read(request_id)[num_reported:]
        if is_finished:
            self._likelihoods.discard(request_id)
        tokens = output.generated_tokens[num_reported:]
        return Progress(request_id, tokens, likelihoods, is_finished, output.error)

    def _load_adapter(self, command: AdapterLoading) -> None:
        error: str | None = None
        try:
            self._adapters.load(command.number, command.path)
        except EngineDeadError as exc:
            error = exc.message
        except Exception as exc:  # a file can fail in any way, and the model keeps serving
            logger.exception("adapter %s could not be loaded", command.path.name)
            error = f"adapter {command.path.name!r} cannot be loaded: {exc}"
        self._report([Progress(command.request_id, (), (), True, error)])

    def _score(self, command: Scoring) -> None:
        adapter = find_adapter(command.request_id)
        likelihoods: list[Likelihood] = []
        error: str | None = None
        try:
            with self._scoring:
                runs = score_tokens(self._model, command.token_ids, command.num_top)
                while command.request_id in self._scored:
                    with self.manager.pause(), self._adapters.use(adapter):
                        if not (run := next(runs, [])):
                            break
                    likelihoods += run
        except Exception as exc:  # the manager has stopped, or the model fails in any way
            logger.exception("a text could not be scored")
            error = str(exc) or type(exc).__name__
        with self._lock:
            if command.request_id not in self._scored:
                return
            self._scored.remove(command.request_id)
        self._report([Progress(command.request_id, (), likelihoods, True, error)])


def _configure_batching(settings: EngineSettings) -> ContinuousBatchingConfig:
    return ContinuousBatchingConfig(
        page_size=settings.page_size,
        num_blocks=settings.num_cache_blocks,
        max_batch_tokens=settings.max_batch_tokens,
        max_requests_per_batch=settings.max_running_requests,
        use_cuda_graph=settings.cuda_graphs,
    )


def _find_context_length(model: PreTrainedModel, manager: ContinuousBatchingManager) -> int:
    num_cache_tokens = count_cache_tokens(manager)
    own: int | None = getattr(model.config.get_text_config(), "max_position_embeddings", None)
    return min(own or num_cache_tokens, num_cache_tokens)
