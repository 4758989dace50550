"""Faults of single items of a repeated scan, logged when they begin and when they end."""

import logging
from collections.abc import Iterable, Iterator
from contextlib import contextmanager


class FaultLog:
    """Logs a fault of an item once until it changes, not on every scan."""

    def __init__(self, logger: logging.Logger) -> None:
        self._logger = logger
        self._known: dict[str, str] = {}

    def report(self, item: str, problem: str, exc: BaseException | None = None) -> None:
        """Log a problem with an item unless it is the last one reported for that item."""
        if self._known.get(item) != problem:
            self._known[item] = problem
            self._logger.error("%s: %s", item, problem, exc_info=exc)

    def clear(self, item: str) -> None:
        """Record that an item has no fault any more; log it if it had one."""
        if self._known.pop(item, None) is not None:
            self._logger.info("%s: works again", item)

    def keep_only(self, items: Iterable[str]) -> None:
        """Forget all items except these."""
        kept = set(items)
        self._known = {item: problem for item, problem in self._known.items() if item in kept}

    @contextmanager
    def guard(self, item: str) -> Iterator[None]:
        """Report exceptions of the body, so that a fault of one item does not stop the scan."""
        try:
            yield
        except Exception as exc:  # noqa: BLE001 - one item of a scan; logged
            self.report(item, f"{type(exc).__name__}: {exc}", exc)
        else:
            self.clear(item)
