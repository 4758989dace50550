"""Processes of one gloo group, forked from one that has imported what they need."""

import multiprocessing
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch.multiprocessing

# Importing takes each worker five seconds of a core, as long as many a group computes. And a
# process that was forked so leaves without taking Python down first, in which a thread of gloo's,
# dropping the last collective's tensors, now and then asks for Python's lock and aborts (3.11).
_PRELOADED = ["deepspeed", "tests.e2e.training_group", "tests.e2e.export_group"]


def run_in_group(work: Callable[..., None], world_size: int, folder: Path, *arguments: Any) -> None:
    """Run `work(rank, world_size, rendezvous, *arguments)` in `world_size` processes to its end.

    Raises what a worker raised. `folder` holds the file by which they find each other.
    """
    multiprocessing.set_forkserver_preload(_PRELOADED)
    rendezvous = tempfile.mktemp(dir=folder)
    torch.multiprocessing.start_processes(  # type: ignore[attr-defined, no-untyped-call]
        work,
        (world_size, rendezvous, *arguments),
        nprocs=world_size,
        start_method="forkserver",
    )
