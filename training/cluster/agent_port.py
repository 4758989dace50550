"""A free port for the agent of a Ray cluster that this process starts."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def choose_free_agent_port() -> Iterator[None]:
    """Make `ray.init` choose a free port for the cluster's agent while the body runs.

    Ray gives every agent port 52365, and `ray.init` has no argument for it. The agent of a second
    cluster on a machine exits, and that cluster then accepts no job: "No available agent".
    """
    from ray._private import parameter

    before = parameter.RayParams.__init__

    def init(self: Any, *arguments: Any, **settings: Any) -> None:
        before(self, *arguments, **{"dashboard_agent_listen_port": 0, **settings})

    parameter.RayParams.__init__ = init  # type: ignore[method-assign]
    try:
        yield
    finally:
        parameter.RayParams.__init__ = before  # type: ignore[method-assign]
