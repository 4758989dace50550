"""Detection of a Ray cluster that has ended or does not answer.

A cluster that does not answer may be busy. If nothing listens at its address, it has ended: the
kernel accepts connections even for a process that gets no CPU time.
"""

import logging
import socket
from concurrent.futures import Future, wait
from threading import Thread

logger = logging.getLogger(__name__)

ANSWER_TIMEOUT_S = 60.0
"""The longest time a cluster may take to answer while its port accepts connections."""
_PROBE_INTERVAL_S = 5.0
_CONNECT_TIMEOUT_S = 5.0


def find_cluster_loss() -> str | None:
    """Return why this process's cluster counts as lost; None if it answers and has a live node.

    Ray itself waits a minute for a cluster that has ended, and then terminates this process.
    """
    address = _find_own_address()
    answer = _query_nodes()
    for _ in range(max(1, round(ANSWER_TIMEOUT_S / _PROBE_INTERVAL_S))):
        if wait([answer], min(_PROBE_INTERVAL_S, ANSWER_TIMEOUT_S)).done:
            return _describe_answer(answer, address)
        if address is not None and (reason := describe_unreachable(address)):
            return reason
    return f"the Ray cluster did not answer for {ANSWER_TIMEOUT_S:g} s"


def describe_unreachable(address: str) -> str | None:
    """Return why a cluster cannot be reached at `host:port`; None if something listens there."""
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), _CONNECT_TIMEOUT_S).close()
    except ConnectionRefusedError:
        return f"the Ray cluster at {address} has ended: nothing listens there"
    except OSError as exc:
        return f"the Ray cluster at {address} cannot be reached: {exc}"
    return None


def _describe_answer(answer: "Future[bool]", address: str | None) -> str | None:
    failure = answer.exception()
    if failure is None:
        return None if answer.result() else "no node of the Ray cluster is alive"
    logger.error("the Ray cluster cannot be asked for its nodes", exc_info=failure)
    reason = None if address is None else describe_unreachable(address)
    return reason or f"the Ray cluster cannot be asked for its nodes: {failure}"


def _find_own_address() -> str | None:
    import ray

    return str(ray.get_runtime_context().gcs_address) if ray.is_initialized() else None


def _query_nodes() -> "Future[bool]":
    """Query on a daemon thread whether any node of the cluster is alive."""
    import ray

    answer: Future[bool] = Future()

    def query() -> None:
        try:
            nodes = ray.nodes()  # type: ignore[no-untyped-call]
            answer.set_result(any(node["Alive"] for node in nodes))
        except Exception as exc:  # noqa: BLE001 - passed to the waiting thread
            answer.set_exception(exc)

    Thread(target=query, name="ask-cluster", daemon=True).start()
    return answer
