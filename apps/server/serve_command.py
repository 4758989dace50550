"""`python -m apps.server.serve_command run …`: Ray Serve's command line beside other clusters.

With plain `serve run`, the second cluster of a machine accepts no Ray job
(`training.cluster.agent_port`).
"""

from contextlib import nullcontext

from ray.serve.scripts import cli

from apps.cli import preflight
from training.cluster.agent_port import choose_free_agent_port


def main() -> None:
    """Run Serve's command line with this process's arguments; never returns."""
    with nullcontext() if preflight.joins_cluster() else choose_free_agent_port():
        cli()


if __name__ == "__main__":
    main()
