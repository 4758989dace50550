"""What a loop may call besides `ray.train`; in plain Ray Train these functions do nothing.

from training.own_loop.api import log_event, should_stop
"""

from training.own_loop.train_functions import find_reporter


def should_stop() -> bool:
    """Return whether the run is to pause: then report a checkpoint, which ends the loop.

    All workers must call this together, and get the same answer. A loop that reports a checkpoint
    every few minutes need not call it.
    """
    reporter = find_reporter()
    return reporter is not None and reporter.should_stop()


def log_event(message: str) -> None:
    """Add an event to the run, which the page, the API and the command line show.

    Only the call of rank 0 has an effect.
    """
    if (reporter := find_reporter()) is not None:
        reporter.log_event(message)
