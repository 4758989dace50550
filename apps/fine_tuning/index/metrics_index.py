"""Index of step offsets in `metrics.jsonl`, so that a range of steps is read without the rest.

An index grows with its file: each call reads only what was added since the previous one. It takes
20 bytes per step, and a replica keeps the indexes of the most recently requested runs.
"""

import logging
import os
from array import array
from bisect import bisect_left, bisect_right
from collections import OrderedDict
from pathlib import Path
from threading import Lock
from typing import BinaryIO

from pydantic_core import from_json

from storage.regular_file import open_regular

logger = logging.getLogger(__name__)

_MAX_INDEXES = 32


class MetricsReader:
    """Reads the metrics of runs by ranges of steps; safe to use from several threads."""

    def __init__(self) -> None:
        self._indexes: OrderedDict[Path, _MetricsIndex] = OrderedDict()
        self._lock = Lock()

    def read(
        self, path: Path, after_step: int = 0, max_points: int | None = None
    ) -> list[dict[str, float]]:
        """Return the lines of the steps after `after_step`, oldest first, at most `max_points`.

        If lines are dropped, the first and the last line stay. The others are one line per range of
        2^n steps, counted from step 0, so that later calls choose the same ones: the first line of
        the range with a validation loss, or else its first line.
        """
        with self._lock:
            index = self._indexes.pop(path, None) or _MetricsIndex()
            self._indexes[path] = index
            if len(self._indexes) > _MAX_INDEXES:
                self._indexes.popitem(last=False)
        try:
            with index.lock, open_regular(path) as file:
                index.update(file)
                return index.read(file, after_step, max_points)
        except FileNotFoundError:  # before the first step
            return []


class _MetricsIndex:
    """Steps and byte offsets of the lines in one file."""

    def __init__(self) -> None:
        self.lock = Lock()
        self._clear(0)

    def update(self, file: BinaryIO) -> None:
        """Index the complete lines that were added, or all lines if the file was replaced."""
        found = os.fstat(file.fileno())
        if found.st_ino != self._inode or found.st_size < self._end:
            self._clear(found.st_ino)
        file.seek(self._end)
        while (line := file.readline()).endswith(b"\n"):
            self._add(line)
            self._end += len(line)

    def read(
        self, file: BinaryIO, after_step: int, max_points: int | None
    ) -> list[dict[str, float]]:
        """Read the chosen lines."""
        begin = bisect_right(self._steps, after_step)
        num_lines = len(self._steps) - begin
        if num_lines == 0:
            return []
        if max_points is not None and num_lines > max_points:
            return [self._read_line(file, index) for index in self._choose(begin, max_points)]
        file.seek(self._offsets[begin])
        content = file.read(self._end - self._offsets[begin])
        return [line for text in content.splitlines() if (line := _parse(text)) is not None]

    def _choose(self, begin: int, max_points: int) -> list[int]:
        """Choose the indexes of at most `max_points` lines from index `begin` on."""
        last = len(self._steps) - 1
        width = 1
        while self._steps[last] // width - self._steps[begin] // width + 3 > max(4, max_points):
            width *= 2
        chosen = {begin, last}
        if max_points < 4:  # no room for lines between both ends
            return sorted(chosen)
        for number in range(self._steps[begin] // width, self._steps[last] // width + 1):
            start = bisect_left(self._steps, number * width, begin)
            end = bisect_left(self._steps, (number + 1) * width, start)
            evaluated = bisect_left(self._evaluated, start)
            if evaluated < len(self._evaluated) and self._evaluated[evaluated] < end:
                chosen.add(self._evaluated[evaluated])
            elif start < end:
                chosen.add(start)
        return sorted(chosen)

    def _read_line(self, file: BinaryIO, index: int) -> dict[str, float]:
        file.seek(self._offsets[index])
        line: dict[str, float] = from_json(file.readline())
        return line

    def _add(self, text: bytes) -> None:
        line = _parse(text)
        if line is None:
            logger.warning("a line of a metrics file is damaged and is skipped")
            return
        if "eval_loss" in line:
            self._evaluated.append(len(self._steps))
        self._steps.append(int(line["step"]))
        self._offsets.append(self._end)

    def _clear(self, inode: int) -> None:
        self._inode = inode
        self._end = 0
        self._steps, self._offsets, self._evaluated = array("q"), array("q"), array("q")


def _parse(text: bytes) -> dict[str, float] | None:
    try:
        line = from_json(text)  # four times as fast as the standard library
    except ValueError:
        return None
    return line if isinstance(line, dict) and "step" in line else None
