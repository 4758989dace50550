"""Checks of what is required before anything long starts; they need only Python itself.

`make` runs this file with the system's Python before there is an environment.
"""

from __future__ import annotations  # for Python versions too old for the other modules

import sys

if __name__ == "__main__":  # the first entry is this folder, whose modules could shadow Python's
    del sys.path[0]

import argparse
import http.client
import importlib.util
import json
import os
import re
import shutil
import socket
import sysconfig
import tempfile
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

MIN_PYTHON = (3, 11)
INSTALL_BYTES = 8_000_000_000  # the environment, with a GPU build of torch
RUN_BYTES = 1_000_000_000  # checkpoints and models of a few small runs
DEFAULT_PORT = 8000
CLUSTER_TIMEOUT_S = 3.0
HEALTH_TIMEOUT_S = 6.0  # slightly longer than the timeout of /healthz
HEALTH_BYTES = 10_000


def main() -> int:
    """Print one sentence per fault; return 1 if there is any."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--environment", type=Path, help="folder that the environment goes into")
    parser.add_argument("--deploy", type=Path, help="deploy.yaml whose port must be free")
    options = parser.parse_args()
    faults = list(find_faults(options.environment, options.deploy))
    for fault in faults:
        print(f"error: {fault}", file=sys.stderr)  # noqa: T201 - a command line
    return 1 if faults else 0


def find_faults(environment: Path | None, deploy: Path | None) -> Iterator[str]:
    """Yield one sentence per missing requirement, with what to do about it."""
    if sys.version_info < MIN_PYTHON:
        yield (
            f"Python {sys.version_info[0]}.{sys.version_info[1]} is too old; "
            f"install Python {MIN_PYTHON[0]}.{MIN_PYTHON[1]} or newer"
        )
    if importlib.util.find_spec("ensurepip") is None:
        yield (
            "this Python cannot make environments; install its venv module "
            "(on Debian and Ubuntu: apt-get install python3-venv)"
        )
    yield from check_compiler()
    if environment is not None:
        needed = RUN_BYTES if environment.is_dir() else INSTALL_BYTES
        yield from check_disk(environment.resolve().parent, needed)
    if deploy is not None:
        yield from check_port(read_port(deploy))
        yield from check_cluster()


def check_compiler() -> Iterator[str]:
    """Check for a C++ compiler and Python's headers: training on CPUs compiles one operation."""
    if has_gpu_driver():
        return
    compiler = os.environ.get("CXX", "g++").split()[-1]
    if shutil.which(compiler) is None:
        yield (
            f"no C++ compiler {compiler!r} was found, and training on CPUs needs one; install it "
            "(on Debian and Ubuntu: apt-get install g++)"
        )
    if not Path(sysconfig.get_paths()["include"], "Python.h").is_file():
        yield (
            "Python's C headers are missing, and training on CPUs needs them; install them "
            "(on Debian and Ubuntu: apt-get install python3-dev)"
        )


def check_disk(folder: Path, needed_bytes: int) -> Iterator[str]:
    """Compare the free space of a folder's disk with what is needed, in bytes."""
    free = shutil.disk_usage(folder).free
    if free < needed_bytes:
        yield (
            f"only {free / 1e9:.1f} GB are free in {str(folder)!r}, and "
            f"{needed_bytes / 1e9:.0f} GB are needed; free some space or use another disk"
        )


def check_port(port: int) -> Iterator[str]:
    """Check that a port of this machine is free."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            if is_application_running(port):
                yield (
                    f"Tuneserve is already running on port {port}; stop it first, or change "
                    "http_options.port and with it api_url and upstreams in the deploy file"
                )
                return
            yield (
                f"port {port} is in use by another program; stop that program, or "
                "change http_options.port and with it api_url and upstreams in the deploy file"
            )


def is_application_running(port: int) -> bool:
    """Return whether Tuneserve listens on a port of this machine, ready or not."""
    try:
        with urllib.request.urlopen(
            f"http://127.0.0.1:{port}/healthz", timeout=HEALTH_TIMEOUT_S
        ) as answer:
            content = answer.read(HEALTH_BYTES)
    except urllib.error.HTTPError as exc:
        content = exc.read(HEALTH_BYTES)
    except (OSError, http.client.HTTPException):
        return False
    try:
        found = json.loads(content)
    except ValueError:
        return False
    if not isinstance(found, dict):
        return False
    error = found.get("error")
    code = error.get("code") if isinstance(error, dict) else None
    # "starting" is from the proxy (`apps.middleware.starting`), "not_ready" from earlier releases.
    has_no_checks = found.get("status") in ("ok", "draining") or code in ("starting", "not_ready")
    return has_no_checks or isinstance(found.get("checks"), dict)


def check_cluster() -> Iterator[str]:
    """Check that the cluster that Ray would join responds: Ray waits forever for one that ended."""
    if os.environ.get("RAY_ADDRESS", "auto") not in {"", "auto"}:
        return
    record, address = _read_cluster_record()
    host, _, port = address.rpartition(":")
    if not port.isdecimal():
        return
    try:
        socket.create_connection((host.strip("[]"), int(port)), CLUSTER_TIMEOUT_S).close()
    except OSError:
        yield (
            f"Ray would join the cluster at {address}, which does not answer; if it has ended, "
            f"remove {str(record)!r}, which names it"
        )


def joins_cluster() -> bool:
    """Return whether Ray would join an existing cluster instead of starting its own."""
    address = os.environ.get("RAY_ADDRESS")
    return address != "local" if address else bool(_read_cluster_record()[1])


def _read_cluster_record() -> tuple[Path, str]:
    """Read the address of the last `ray start`, from a file of Ray's that outlives a crash."""
    folder = Path(os.environ.get("RAY_TMPDIR") or tempfile.gettempdir())
    record = folder / "ray" / "ray_current_cluster"
    try:
        return record, record.read_text().strip()
    except OSError:
        return record, ""


def read_port(deploy: Path) -> int:
    """Return the port in a deploy.yaml, read as text, since Python has no YAML parser."""
    found = re.search(r"^\s+port:\s*(\d+)", deploy.read_text(), re.MULTILINE)
    return int(found[1]) if found else DEFAULT_PORT


def has_gpu_driver() -> bool:
    """Return whether an NVIDIA driver is installed: training on GPUs compiles nothing here."""
    return shutil.which("nvidia-smi") is not None


if __name__ == "__main__":
    sys.exit(main())
