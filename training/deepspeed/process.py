"""Setting up DeepSpeed in the process of a worker."""

import os

import torch

from training.deepspeed.cpu_op import load_cpu_op


def set_accelerator(device: torch.device) -> None:
    """Let DeepSpeed find its accelerator and its compiled operation, once it is imported."""
    # DeepSpeed guesses its accelerator at import: set it before, and import it in workers only.
    os.environ["DS_ACCELERATOR"] = device.type
    if device.type == "cpu":
        load_cpu_op()


def prepare_deepspeed(device: torch.device) -> None:
    """Set up DeepSpeed's collectives in the process group that Ray Train created."""
    set_accelerator(device)
    import deepspeed

    deepspeed.init_distributed(dist_backend="nccl" if device.type == "cuda" else "gloo")
