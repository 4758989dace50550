"""Prometheus metrics of a generator, exported by Ray, and its request log.

Ray adds the prefix `ray_` to the metric names, and the suffix `_total` to those of counters.
`docs/operations.md` lists them; `docs/grafana.json` shows them.
"""

import logging
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Protocol

from ray.serve.metrics import Counter, Gauge, Histogram

from serving.engine.pending_requests import EngineLoad
from serving.errors import ServingError
from serving.wire import Piece, RequestKind

logger = logging.getLogger(__name__)

_SECONDS = [0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50, 100]
_CANCELLED, _ANSWERED, _FAILED = "cancelled", "answered", "failed"


class ObservedRequest(Protocol):
    """A request as metrics and log need it."""

    @property
    def id(self) -> str:
        """The id of the response."""

    @property
    def kind(self) -> RequestKind:
        """The kind of the request."""

    @property
    def logged_body(self) -> str | None:
        """The client's body; None if texts are not logged."""


@dataclass
class RequestRecord:
    """One request from its arrival to its end; times are monotonic, in seconds.

    `id` is the id of the response that the client receives.
    """

    id: str
    kind: str
    arrived: float = field(default_factory=time.monotonic)
    model_id: str = ""
    num_prompt_tokens: int = 0
    num_completion_tokens: int = 0
    num_answers: int = 0
    first_piece: float | None = None
    last_piece: float | None = None
    texts: dict[int, str] | None = None

    def record_streamed(self, pieces: Sequence[Piece]) -> None:
        """Record pieces of streamed answers that are sent now."""
        self.last_piece = time.monotonic()
        if self.first_piece is None:
            self.first_piece = self.last_piece
        self.record_pieces(pieces)

    def record_pieces(self, pieces: Sequence[Piece]) -> None:
        """Record pieces of answers; the last piece of each answer has the token count."""
        for piece in pieces:
            if piece.finish_reason is not None:
                self.num_completion_tokens += piece.num_completion_tokens
            if self.texts is not None:
                self.texts[piece.choice_index] = self.texts.get(piece.choice_index, "") + piece.text


class GeneratorMetrics:
    """The metrics of one replica, and a log line for every request.

    Texts of requests and answers are logged only with `log_texts`.
    """

    def __init__(self, *, log_texts: bool) -> None:
        self._log_texts = log_texts
        # Ray annotates tag keys as a tuple of one string, but accepts any number.
        model: Any = ("model",)
        outcome: Any = ("model", "kind", "outcome")
        move: Any = ("alias", "outcome")
        self._requests = Counter("tuneserve_requests", "Requests that ended.", outcome)
        self._prompt_tokens = Counter("tuneserve_prompt_tokens", "Tokens of prompts.", model)
        self._completion_tokens = Counter("tuneserve_completion_tokens", "Tokens made.", model)
        self._handovers = Counter(
            "tuneserve_handovers", "Moves of an alias from model to model.", move
        )
        self._first_token = Histogram(
            "tuneserve_time_to_first_token_s", "Arrival to first text, streamed.", _SECONDS, model
        )
        self._per_token = Histogram(
            "tuneserve_time_per_output_token_s", "Between tokens, streamed.", _SECONDS, model
        )
        self._duration = Histogram(
            "tuneserve_request_s", "Arrival to the end of the answer.", _SECONDS, model
        )
        self._running = Gauge("tuneserve_running_requests", "Requests in the batch.", model)
        self._waiting = Gauge("tuneserve_waiting_requests", "Requests before the batch.", model)
        self._cache = Gauge("tuneserve_cache_use", "Share of the cache taken, 0 to 1.", model)
        self._loaded = Gauge("tuneserve_loaded_models", "Models in memory.")
        self._bytes = Gauge("tuneserve_model_bytes", "Memory reserved for a loaded model.", model)
        self._recorded_models: set[str] = set()
        self._measured_models: set[str] = set()

    @contextmanager
    def observe_request(self, request: ObservedRequest) -> Iterator[RequestRecord]:
        """Count and time one request, whether it is answered, fails or is cancelled."""
        texts: dict[int, str] | None = {} if self._log_texts else None
        record, outcome = RequestRecord(request.id, request.kind, texts=texts), _CANCELLED
        try:
            yield record
            outcome = _ANSWERED
        except ServingError as exc:
            outcome = exc.code or type(exc).__name__
            raise
        except Exception:
            outcome = _FAILED
            raise
        finally:
            self._record_request(record, outcome)
            if record.texts is not None:
                logger.info(
                    "%s: asked %s, answered %s", record.id, request.logged_body, record.texts
                )

    def record_handover(self, alias: str, outcome: str) -> None:
        """Count a hand-over event of an alias by its outcome."""
        with _log_failure():
            self._handovers.inc(tags={"alias": alias, "outcome": outcome})

    def record_load(self, loads: dict[str, EngineLoad]) -> None:
        """Set the gauges to the loads of the engines, by model id."""
        with _log_failure():
            self._loaded.set(len(loads))
            for model_id in self._recorded_models | loads.keys():
                load = loads.get(model_id, EngineLoad(0, 0, 0.0))
                tags = {"model": model_id}
                self._running.set(load.num_running, tags=tags)
                self._waiting.set(load.num_waiting, tags=tags)
                self._cache.set(load.cache_use, tags=tags)
        self._recorded_models = set(loads)

    def record_sizes(self, sizes: Mapping[str, int]) -> None:
        """Set the gauge of memory to the bytes of the loaded models, by model id."""
        with _log_failure():
            for model_id in self._measured_models | sizes.keys():
                self._bytes.set(sizes.get(model_id, 0), tags={"model": model_id})
        self._measured_models = set(sizes)

    def _record_request(self, record: RequestRecord, outcome: str) -> None:
        tags = {"model": record.model_id}
        took_s = time.monotonic() - record.arrived
        with _log_failure():
            self._requests.inc(tags={**tags, "kind": record.kind, "outcome": outcome})
            if outcome == _ANSWERED:
                _add(self._prompt_tokens, record.num_prompt_tokens, tags)
                _add(self._completion_tokens, record.num_completion_tokens, tags)
                self._duration.observe(took_s, tags=tags)
                self._record_pace(record, tags)
        logger.info(
            "%s: %s for %s: %s after %.3f s, %d tokens in, %d out",
            record.id,
            record.kind,
            record.model_id or "no model",
            outcome,
            took_s,
            record.num_prompt_tokens,
            record.num_completion_tokens,
        )

    def _record_pace(self, record: RequestRecord, tags: dict[str, str]) -> None:
        if record.first_piece is None or record.last_piece is None:  # it was not streamed
            return
        self._first_token.observe(record.first_piece - record.arrived, tags=tags)
        if record.num_answers == 1 and record.num_completion_tokens > 1:
            took_s = record.last_piece - record.first_piece
            self._per_token.observe(took_s / (record.num_completion_tokens - 1), tags=tags)


def _add(counter: Counter, num: int, tags: dict[str, str]) -> None:
    """Add to a counter; Ray's counters reject zero."""
    if num > 0:
        counter.inc(num, tags=tags)


@contextmanager
def _log_failure() -> Iterator[None]:
    """Log exceptions of the body, so that a metric never makes a request fail."""
    try:
        yield
    except Exception:
        logger.exception("a metric was not recorded")
