"""The evaluations of a run, a file of JSON lines with one line per evaluation."""

import logging
import math
import time
from collections.abc import Mapping
from dataclasses import asdict
from itertools import islice
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError

from storage import durable
from training.run.run_metrics import drop_lines_after
from training.task import ConfusionMatrix

logger = logging.getLogger(__name__)

_TAIL_BYTES = 1 << 20


class EvaluationRecord(BaseModel):
    """The loss and the metrics after a step, without figures that are not finite.

    `confusion_matrix` is None for a task without classes, or with too many.
    """

    model_config = ConfigDict(frozen=True)

    step: int
    loss: float | None = None
    metrics: dict[str, float] = {}
    confusion_matrix: ConfusionMatrix | None = None
    created_at: int = 0


class RunEvaluations:
    """Adds and reads the evaluations of one run."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def add(
        self,
        step: int,
        loss: float,
        metrics: Mapping[str, float],
        confusion: ConfusionMatrix | None,
    ) -> None:
        """Append an evaluation, and when it was recorded."""
        line: dict[str, Any] = {
            "step": step,
            "loss": loss if math.isfinite(loss) else None,
            "metrics": {name: value for name, value in metrics.items() if math.isfinite(value)},
            "confusion_matrix": asdict(confusion) if confusion else None,
            "created_at": int(time.time()),
        }
        durable.append_json_line(self.path, line)

    def read_newest(self, limit: int) -> list[EvaluationRecord]:
        """Read the newest evaluations, newest first: at most `limit`, of the last 1 MiB.

        Lines that are damaged, such as those cut by a crash, are skipped and logged.
        """
        tail = durable.read_tail(self.path, _TAIL_BYTES)
        lines = tail[: tail.rfind(b"\n") + 1].splitlines()
        if len(tail) == _TAIL_BYTES:  # the first line may be cut
            lines = lines[1:]
        records = (self._parse(line) for line in lines[::-1] if line.strip())
        return list(islice((record for record in records if record is not None), limit))

    def _parse(self, line: bytes) -> EvaluationRecord | None:
        try:
            return EvaluationRecord.model_validate_json(line)
        except ValidationError:
            logger.warning("%s has a damaged line, which is skipped", self.path)
            return None

    def drop_after(self, step: int) -> None:
        """Drop the evaluations of steps after `step`, which will be repeated."""
        drop_lines_after(self.path, step)
