"""The signal that `tuneserve run` sends to the processes of its cluster when it stops.

The signal is a private folder, named by an environment variable that all processes of the cluster
inherit. The file `draining` exists once new requests must be refused and running fine-tuning jobs
must pause; `runs-paused` exists once the queue has no run that computes.
"""

import os
from pathlib import Path

DRAIN_FOLDER_VARIABLE = "TUNESERVE_DRAIN_FOLDER"


class DrainSignal:
    """The two files of one application's drain folder."""

    def __init__(self, folder: Path) -> None:
        self._draining = folder / "draining"
        self._runs_paused = folder / "runs-paused"

    def begin(self) -> None:
        """Signal every process to drain."""
        self._draining.touch()

    @property
    def is_draining(self) -> bool:
        """Whether the application is stopping."""
        return self._draining.exists()

    def report_runs_paused(self) -> None:
        """Report that no run computes any more."""
        self._runs_paused.touch()

    @property
    def are_runs_paused(self) -> bool:
        """Whether the queue has reported that no run computes."""
        return self._runs_paused.exists()


def find_drain_signal() -> DrainSignal | None:
    """Return the drain signal of the application that this process belongs to.

    Returns None if `tuneserve run` did not start this process, as in an existing cluster.
    """
    folder = os.environ.get(DRAIN_FOLDER_VARIABLE)
    return DrainSignal(Path(folder)) if folder else None
