"""Serve's command line, with a free port for the agent of the cluster that it starts."""

import pytest
from ray._private.parameter import RayParams

from apps.cli import preflight
from apps.server import serve_command


@pytest.mark.parametrize(("joins_cluster", "expected"), [(False, 0), (True, 52365)])
def test_own_cluster_gets_free_agent_port(
    joins_cluster: bool, expected: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    ports = []
    monkeypatch.setattr(preflight, "joins_cluster", lambda: joins_cluster)
    monkeypatch.setattr(
        serve_command, "cli", lambda: ports.append(RayParams().dashboard_agent_listen_port)
    )
    serve_command.main()
    assert ports == [expected]
