"""Our log lines in the log of the Serve replica that they come from, in its format.

Serve sets up only its own logger `ray.serve`: in the file of the replica, as text or as JSON with
the request's id (`logging_config` in a deploy file). Lines of other loggers are lost below WARNING.
"""

import logging

from ray import serve
from ray.serve.exceptions import RayServeException

_SERVE_LOGGER = "ray.serve"
_PACKAGES = ("apps", "serving", "storage", "training")


class _ToServe(logging.Handler):
    """Hands lines on to Serve's logger, whose handlers Serve may change at any time."""

    def emit(self, record: logging.LogRecord) -> None:
        """Hand one line on."""
        logging.getLogger(_SERVE_LOGGER).handle(record)


def log_to_serve() -> None:
    """Write the lines of our loggers, from INFO, into the log of this replica of Serve.

    In a process that is no replica nothing is changed.
    """
    try:
        serve.get_replica_context()
    except RayServeException:
        return
    for name in _PACKAGES:
        logger = logging.getLogger(name)
        if not any(isinstance(handler, _ToServe) for handler in logger.handlers):
            logger.addHandler(_ToServe())
        logger.setLevel(logging.INFO)
        logger.propagate = False
