"""Setting up DeepSpeed in the process of a worker."""

import os
from typing import Any

import torch

from training.deepspeed.cpu_op import load_cpu_op


def set_accelerator(device: torch.device) -> None:
    """Let DeepSpeed find its accelerator and its compiled operation, once it is imported."""
    # DeepSpeed guesses its accelerator at import: set it before, and import it in workers only.
    os.environ["DS_ACCELERATOR"] = device.type
    if device.type == "cpu":
        load_cpu_op()


def import_deepspeed(device: torch.device) -> Any:
    """Import DeepSpeed with its accelerator; returns the module."""
    set_accelerator(device)
    import deepspeed

    _import_muon_uncompiled()
    return deepspeed


def prepare_deepspeed(device: torch.device) -> None:
    """Set up DeepSpeed's collectives in the process group that Ray Train created."""
    backend = "nccl" if device.type == "cuda" else "gloo"
    import_deepspeed(device).init_distributed(dist_backend=backend)


def _import_muon_uncompiled() -> None:
    """Import DeepSpeed's optimizer Muon without the compiler that its functions are prepared for.

    Every engine imports it, whatever its optimizer is, and the compiler takes 2 s to import. Its
    functions stay uncompiled in this process.
    """
    from deepspeed.runtime import compiler

    def leave_uncompiled(*_: Any, **__: Any) -> Any:
        return lambda function: function

    compile_functions, compiler.compile = compiler.compile, leave_uncompiled
    try:
        import deepspeed.runtime.zero.muon.original_muon  # noqa: F401 - for its side effect
    finally:
        compiler.compile = compile_functions
