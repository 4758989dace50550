"""The output of a run while it trains: events, and one line of metrics per step."""

import logging
import math
from collections import deque
from collections.abc import Mapping, Sequence

from training.engine import StepResult
from training.evaluation import Evaluation
from training.monitoring.tracker_thread import Tracker
from training.place import Place
from training.run.event_codes import EventCode
from training.run.folder import RunFolder
from training.run.progress import Progress
from training.run.run_events import EventLevel

logger = logging.getLogger(__name__)

_WINDOW_STEPS = 50
_LARGEST_EXPONENT = 700.0


class Journal:
    """Writes events, `metrics.jsonl` and trackers; all workers have one, only rank 0's writes.

    `has_perplexity` is false for a task whose loss is not one of tokens.
    """

    def __init__(
        self,
        run: RunFolder,
        place: Place,
        trackers: Sequence[Tracker],
        num_steps: int,
        *,
        has_perplexity: bool = True,
    ) -> None:
        self._run = run
        self._is_reporting = place.rank == 0
        self._trackers = list(trackers)
        self._num_steps = num_steps
        self._has_perplexity = has_perplexity
        self._speed = _Throughput()

    def expect_steps(self, num_steps: int) -> None:
        """Correct the number of steps that the run will take."""
        self._num_steps = num_steps

    def log_event(
        self,
        message: str,
        level: EventLevel = "info",
        *,
        code: EventCode | None = None,
        figures: Mapping[str, float] | None = None,
        **data: float,
    ) -> None:
        """Write an event to the run's events file and its log, with figures by their names."""
        if self._is_reporting:
            logger.info(message)
            named = {**(figures or {}), **data}
            finite = {name: value for name, value in named.items() if math.isfinite(value)}
            self._run.events.add(message, level=level, code=code, data=finite)

    def record_evaluation(self, step: int, found: Evaluation) -> None:
        """Write an evaluation to its file, and its figures as an event."""
        self.add_evaluation(step, found)
        figures = [f"validation loss {found.loss:.4f}"]
        if self._has_perplexity:
            figures.append(f"perplexity {compute_perplexity(found.loss):.2f} per token")
        figures += [f"{name} {value:.4f}" for name, value in found.metrics.items()]
        self.log_event(
            f"Step {step}: {', '.join(figures)}",
            step=step,
            eval_loss=found.loss,
            figures={f"eval_{name}": value for name, value in found.metrics.items()},
        )

    def add_evaluation(self, step: int, found: Evaluation) -> None:
        """Write an evaluation to its file; a loss that is not finite counts as absent."""
        if self._is_reporting:
            self._run.evaluations.add(step, found.loss, found.metrics, found.confusion)

    def record_step(self, result: StepResult, progress: Progress, steps_in_epoch: int) -> None:
        """Write the metrics of a step, and of the evaluation after it if there was one."""
        self._speed.add(result)
        if result.was_skipped:
            self.log_event(
                f"Step {progress.step} was skipped: its gradients were not finite",
                level="warn",
            )
        line: dict[str, float] = {
            "step": progress.step,
            "num_steps": self._num_steps,
            "epoch": round(progress.epoch + progress.step_in_epoch / steps_in_epoch, 4),
            "loss": result.loss,
            "learning_rate": result.learning_rate,
            **_name_if_finite("grad_norm", result.grad_norm),  # absent if fp16 overflowed
            "learned_tokens": result.num_targets,
            "tokens": result.num_tokens,
            "trained_tokens": progress.trained_tokens,
            **self._speed.describe(self._num_steps - progress.step),
            "elapsed_s": round(progress.elapsed_s, 3),
            "peak_memory_bytes": result.peak_memory_bytes,
        }
        if (loss := progress.measured_loss) is not None:
            line |= _name_if_finite("eval_loss", loss)
            if self._has_perplexity:
                line |= _name_if_finite("eval_perplexity", compute_perplexity(loss))
        for name, value in progress.measured_metrics.items():
            line |= _name_if_finite(f"eval_{name}", value)
        self.record_line(line)

    def record_line(self, line: dict[str, float]) -> None:
        """Write one line of metrics, which has its `step`."""
        if self._is_reporting:
            self._run.metrics.add(line)
            self._track(line, int(line["step"]))

    def _track(self, line: dict[str, float], step: int) -> None:
        """Pass a line to the trackers; one that fails is removed, and training continues."""
        for tracker in list(self._trackers):
            try:
                tracker.log(line, step)
            except Exception as exc:
                self._trackers.remove(tracker)
                name = getattr(tracker, "name", type(tracker).__name__.strip("_"))
                logger.exception("tracker %s failed", name)
                self._run.events.add(
                    f"Metrics go to {name} no more: {exc}. They are in metrics.jsonl in any case",
                    level="warn",
                    code="tracker_off",
                    data={"tracker": name},
                )


def _name_if_finite(name: str, value: float) -> dict[str, float]:
    return {name: value} if math.isfinite(value) else {}


def compute_perplexity(loss: float) -> float:
    """Return the perplexity per token of a mean loss in nats, limited to what a float can hold."""
    return math.exp(min(loss, _LARGEST_EXPONENT))


class _Throughput:
    """Throughput over the last 50 steps, in tokens without padding over all workers."""

    def __init__(self) -> None:
        self._steps: deque[StepResult] = deque(maxlen=_WINDOW_STEPS)

    def add(self, step: StepResult) -> None:
        self._steps.append(step)

    def describe(self, num_left: int) -> dict[str, float]:
        took_s = sum(step.took_s for step in self._steps)
        return {
            "tokens_per_s": round(sum(step.num_tokens for step in self._steps) / took_s, 1),
            "learned_tokens_per_s": round(
                sum(step.num_targets for step in self._steps) / took_s, 1
            ),
            "remaining_s": round(took_s / len(self._steps) * num_left, 3),
        }
