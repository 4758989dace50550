"""Machine-readable codes of events; `docs/http.md` documents their meaning."""

from typing import Literal

EventCode = Literal[
    "queued",
    "cancel_requested",
    "pause_requested",
    "pausing",
    "pause_timed_out",
    "resources_close",
    "worker_lost",
    "checkpoint_damaged",
    "step_stalled",
    "tracker_off",
    "disk_full",
    "loss_rose",
    "no_model",
]
