"""Readiness of the application: storage, generator, classifier and queue, checked separately.

The route needs no key, so concurrent requests share a check, the storage is probed at most once a
second, and a response contains only names and states: the log has the causes.
"""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable

from apps.http_api.dependencies import Services
from storage.writable_check import check_writable
from system.threads import DedicatedThread

logger = logging.getLogger(__name__)

CHECK_TIMEOUT_S = 5.0
_STORAGE_INTERVAL_S = 1.0


class Readiness:
    """The readiness checks. Not thread-safe: for use in one event loop."""

    def __init__(self, services: Services) -> None:
        self._services = services
        self._checks: dict[str, Callable[[], Awaitable[None]]] = {
            "storage": self._check_storage,
            "generator": services.text.check,
            "classifier": services.classifier.check,
            "queue": services.fine_tuning.check,
        }
        self._thread = DedicatedThread("probe-storage")
        self._probe: asyncio.Task[None] | None = None
        self._probed_at = -_STORAGE_INTERVAL_S
        self._failed: dict[str, str] = {}

    async def check(self) -> dict[str, bool]:
        """Return for each check whether it passed; takes `CHECK_TIMEOUT_S` at most."""
        passed = await asyncio.gather(*(self._run(name) for name in self._checks))
        return dict(zip(self._checks, passed, strict=True))

    async def _run(self, name: str) -> bool:
        try:
            async with asyncio.timeout(CHECK_TIMEOUT_S):
                await self._checks[name]()
        except Exception as exc:  # noqa: BLE001 - with any error, the part is not ready
            kind = type(exc).__name__
            if self._failed.get(name) != kind:  # once: load balancers poll every second
                logger.warning("not ready: %s: %s: %s", name, kind, exc)
            self._failed[name] = kind
            return False
        if self._failed.pop(name, None) is not None:
            logger.info("ready again: %s", name)
        return True

    async def _check_storage(self) -> None:
        """Probe the disk in a thread; a disk that hangs blocks one thread, not one per request."""
        is_over = self._probe is None or self._probe.done()
        if is_over and time.monotonic() - self._probed_at >= _STORAGE_INTERVAL_S:
            self._probed_at = time.monotonic()
            self._probe = asyncio.create_task(self._thread.run(self._probe_storage))
        assert self._probe is not None
        await asyncio.shield(self._probe)

    def _probe_storage(self) -> None:
        check_writable(self._services.layout.root, self._services.min_free_bytes)
        self._services.models.read_aliases()
