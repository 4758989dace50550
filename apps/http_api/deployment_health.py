"""The health of the deployments behind this API, as the Serve controller last found it.

A request to a deployment is queued behind all others. The controller checks each replica on a
separate path (`check_health`), so a busy deployment is not mistaken for a dead one.
"""

import asyncio
import time

from ray import serve
from ray.serve.schema import ServeStatus

_LIFETIME_S = 1.0
_FAILED = frozenset({"UNHEALTHY", "DEPLOY_FAILED"})


class UnhealthyDeploymentError(RuntimeError):
    """A deployment has no replica that can answer."""


class DeploymentHealth:
    """Status from the controller: read at most once a second, shared by concurrent callers."""

    def __init__(self) -> None:
        self._reading: asyncio.Task[ServeStatus] | None = None
        self._read_at = 0.0

    async def check(self, application: str, deployment: str, *, may_sleep: bool = False) -> None:
        """Raise `UnhealthyDeploymentError` if no replica runs; `may_sleep` allows zero replicas."""
        found = (await self._read()).applications.get(application)
        overview = found.deployments.get(deployment) if found else None
        if overview is None:
            raise UnhealthyDeploymentError(f"{deployment} is not deployed")
        num_running = overview.replica_states.get("RUNNING", 0)  # type: ignore[call-overload]
        if overview.status in _FAILED or not (num_running or may_sleep):
            raise UnhealthyDeploymentError(
                f"{deployment} is {overview.status} with {num_running} running replicas; expected "
                f"at least 1: {overview.message}"
            )

    async def _read(self) -> ServeStatus:
        is_over = self._reading is None or self._reading.done()
        if is_over and time.monotonic() - self._read_at >= _LIFETIME_S:
            self._read_at = time.monotonic()
            self._reading = asyncio.create_task(asyncio.to_thread(serve.status))
        assert self._reading is not None
        return await asyncio.shield(self._reading)
