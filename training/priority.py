"""Which of a machine's processes goes first."""

import os

_NICENESS = 15


def yield_to_others() -> None:
    """Let other processes go first: a training takes hours, an answer is wanted at once.

    Ray does the same with all its workers, unless it is told otherwise; the application tells it
    otherwise, so that what answers is not among them.
    """
    niceness = os.getpriority(os.PRIO_PROCESS, 0)
    os.setpriority(os.PRIO_PROCESS, 0, max(niceness, _NICENESS))
