"""Log records of Tuneserve in the log of the Serve replica, in its format.

Serve configures only its own logger `ray.serve`, which writes to the replica's file as text or as
JSON with the request id (`logging_config` in a deploy file). Records of other loggers are lost
below WARNING.
"""

import logging

from ray import serve
from ray.serve.exceptions import RayServeException

_SERVE_LOGGER = "ray.serve"
_PACKAGES = ("apps", "serving", "storage", "training")


class _ServeHandler(logging.Handler):
    """Forwards records to Serve's logger, whose handlers Serve may change at any time."""

    def emit(self, record: logging.LogRecord) -> None:
        """Forward one record."""
        logging.getLogger(_SERVE_LOGGER).handle(record)


def log_to_serve() -> None:
    """Forward the records of Tuneserve's loggers, from INFO, to the log of this Serve replica.

    Does nothing in a process that is not a replica.
    """
    try:
        serve.get_replica_context()
    except RayServeException:
        return
    for name in _PACKAGES:
        logger = logging.getLogger(name)
        if not any(isinstance(handler, _ServeHandler) for handler in logger.handlers):
            logger.addHandler(_ServeHandler())
        logger.setLevel(logging.INFO)
        logger.propagate = False
