"""A deployment of the application with its own port and storage root, for benchmarks and tests."""

import random
import socket
from contextlib import suppress
from pathlib import Path
from typing import Any

import yaml

_PORTS = range(20_000, 32_768)


def write_deploy_file(source: Path, folder: Path, port: int, **arguments_of_api: Any) -> Path:
    """Copy a deploy.yaml with another port and storage root; returns the path of the copy.

    `arguments_of_api` replace or extend the arguments of `apps.deployments`.
    """
    settings = yaml.safe_load(source.read_text().replace("127.0.0.1:8000", f"127.0.0.1:{port}"))
    settings["http_options"]["port"] = port
    for application in settings["applications"]:
        arguments = application["args"]
        if "storage" in arguments:
            arguments["storage"] = str(folder / "storage")
        if application["import_path"].startswith("apps.deployments:"):
            arguments.update(arguments_of_api)
    target = folder / "deploy.yaml"
    target.write_text(yaml.safe_dump(settings))
    return target


def find_free_port() -> int:
    """Find a free port below the ephemeral range and above the ports of Ray's workers.

    A free port of the ephemeral range could be assigned to the next outgoing connection of any
    process in the cluster.
    """
    for port in random.sample(_PORTS, len(_PORTS)):
        with socket.socket() as probe, suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port
    raise RuntimeError(f"none of the ports {_PORTS.start} to {_PORTS.stop - 1} is free")
