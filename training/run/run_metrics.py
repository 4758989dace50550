"""The metrics of a run, a file of JSON lines with one line per optimizer step."""

import json
import time
from pathlib import Path

from storage import durable


class RunMetrics:
    """Adds and reads the metrics of one run."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def add(self, metrics: dict[str, float]) -> None:
        """Append the metrics of one optimizer step, and when they were recorded."""
        durable.append_json_line(self.path, {**metrics, "created_at": int(time.time())})

    def read(self) -> list[dict[str, float]]:
        """Read the metrics of all steps, oldest first."""
        return durable.read_json_lines(self.path)

    def read_last(self) -> dict[str, float] | None:
        """Read the metrics of the newest step; None before the first."""
        last: dict[str, float] | None = durable.read_last_json_line(self.path)
        return last

    def drop_after(self, step: int) -> None:
        """Drop the metrics of steps after `step`, which will be taken again."""
        drop_lines_after(self.path, step)


def drop_lines_after(path: Path, step: int) -> None:
    """Drop the lines of a file whose 'step' is larger than `step`; do nothing without a file."""
    lines = durable.read_json_lines(path)
    kept = [line for line in lines if line["step"] <= step]
    if len(kept) < len(lines):
        content = "".join(f"{json.dumps(line, separators=(',', ':'))}\n" for line in kept)
        durable.write_bytes(path, content.encode())
