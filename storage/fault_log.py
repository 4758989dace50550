"""Faults of single items of a scan that repeats: each is logged when it begins and when it ends."""

import logging
from collections.abc import Iterable, Iterator
from contextlib import contextmanager


class FaultLog:
    """Logs a fault once per item as long as it stays the same, not on every scan."""

    def __init__(self, logger: logging.Logger) -> None:
        self._logger = logger
        self._known: dict[str, str] = {}

    def report(self, item: str, problem: str, exc: BaseException | None = None) -> None:
        """Log a problem with an item unless the last one reported for it was the same."""
        if self._known.get(item) != problem:
            self._known[item] = problem
            self._logger.error("%s: %s", item, problem, exc_info=exc)

    def clear(self, item: str) -> None:
        """Note that nothing is wrong with an item any more."""
        if self._known.pop(item, None) is not None:
            self._logger.info("%s: works again", item)

    def keep_only(self, items: Iterable[str]) -> None:
        """Forget the items that no longer exist."""
        kept = set(items)
        self._known = {item: problem for item, problem in self._known.items() if item in kept}

    @contextmanager
    def guard(self, item: str) -> Iterator[None]:
        """Report what the body raises, so that trouble with one item does not stop the others."""
        try:
            yield
        except Exception as exc:  # noqa: BLE001 - one item of a scan; logged
            self.report(item, f"{type(exc).__name__}: {exc}", exc)
        else:
            self.clear(item)
