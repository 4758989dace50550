"""Environment and fixtures of all tests; no test uses a network beyond this machine."""

import os

# Set before any test imports huggingface_hub, which reads it at import.
os.environ["HF_HUB_OFFLINE"] = "1"
# On two cores, two processes with two threads each are several times slower than with one each.
os.environ["OMP_NUM_THREADS"] = "1"
os.environ["TOKENIZERS_PARALLELISM"] = "false"

from tests.forked_workers import forked_workers, worker_server
from tests.preloaded_check import preloaded_check
from tests.training_process import exact, trained_folder, whole

__all__ = [
    "exact",
    "forked_workers",
    "preloaded_check",
    "trained_folder",
    "whole",
    "worker_server",
]
