"""Processes of one gloo group, forked from a server process that has imported their modules."""

import multiprocessing
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch.multiprocessing

# Importing costs each worker five CPU-seconds, as long as many groups compute. In addition, such a
# forked process exits without finalising the interpreter; during finalisation, a gloo thread that
# frees the tensors of the last collective sometimes requests the GIL and aborts (Python 3.11).
_PRELOADED = ["deepspeed", "tests.e2e.training_group", "tests.e2e.export_group"]


def run_in_group(work: Callable[..., None], world_size: int, folder: Path, *arguments: Any) -> None:
    """Run `work(rank, world_size, rendezvous, *arguments)` in `world_size` processes to its end.

    Raises a worker's exception. The rendezvous file is in `folder`.
    """
    multiprocessing.set_forkserver_preload(_PRELOADED)
    rendezvous = tempfile.mktemp(dir=folder)
    torch.multiprocessing.start_processes(  # type: ignore[attr-defined, no-untyped-call]
        work,
        (world_size, rendezvous, *arguments),
        nprocs=world_size,
        start_method="forkserver",
    )
