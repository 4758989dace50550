"""Connection of a run's process to the Ray cluster that started it."""

import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Timer

from training.cluster.cluster_state import describe_unreachable
from training.cluster.ray_train import ClusterLostError

logger = logging.getLogger(__name__)

CONNECT_TIMEOUT_S = 60.0
_GAVE_UP_STATUS = 75  # EX_TEMPFAIL of sysexits.h: try again


@contextmanager
def connect_to_cluster(timeout_s: float = CONNECT_TIMEOUT_S) -> Iterator[None]:
    """Connect to the cluster that `RAY_ADDRESS` names while the body runs.

    Raises `ClusterLostError` if nothing listens there, or it cannot be reached. `ray.init` waits
    for minutes for a cluster that has ended and cannot be interrupted, and the process has the
    lease of its run meanwhile. So the process exits if it is not connected after `timeout_s`
    seconds.
    """
    import ray  # slow to import, which would delay --help

    _probe(os.environ.get("RAY_ADDRESS", ""))
    watchdog = Timer(timeout_s, _give_up, [timeout_s])
    watchdog.daemon = True
    watchdog.start()
    try:
        ray.init(log_to_driver=False)
    finally:
        watchdog.cancel()
    try:
        yield
    finally:
        ray.shutdown()


def _probe(address: str) -> None:
    if not address.rpartition(":")[2].isdecimal():  # 'auto', or none
        return
    if reason := describe_unreachable(address):
        raise ClusterLostError(reason)


def _give_up(timeout_s: float) -> None:
    logger.critical("the Ray cluster did not accept this process within %g s", timeout_s)
    os._exit(_GAVE_UP_STATUS)
