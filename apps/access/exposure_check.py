"""Start-up check that Serve's port is not open to other machines without a key."""

import ray
from ray.serve.context import _get_global_client

from apps.access.gate import Gate
from apps.access.keyless import API_KEY_VARIABLE, is_loopback_host


class ExposedError(ValueError):
    """Other machines can reach Serve's port, and no key is required."""


def find_serve_host() -> str | None:
    """Return the address that Serve's proxies listen on; None if Serve is not running.

    It is read from the controller, whichever program started Serve: `http_options` of a deploy file
    have no effect on a cluster where Serve is already running.
    """
    if not ray.is_initialized():
        return None
    client = _get_global_client(raise_if_no_controller_running=False)
    host = None if client is None else client.http_config.host
    return None if host is None else str(host)


def check_exposure(gate: Gate, host: str | None) -> None:
    """Raise `ExposedError` if other machines can reach the host and no key is needed."""
    if host is None or is_loopback_host(host) or gate.needs_key():
        return
    raise ExposedError(
        f"Ray Serve listens on {host!r}, where other machines can reach it, and no API key exists; "
        f"expected one of: http_options.host 127.0.0.1 in the deploy file (Serve must be started "
        f"anew for it: serve shutdown), the environment variable {API_KEY_VARIABLE}, a key made by "
        "'tuneserve keys create', or the setting 'require_key: true'"
    )
