"""The place of a worker among all workers of a training."""

from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class Place:
    """A worker's rank among `world_size`, and its device."""

    rank: int
    world_size: int
    device: torch.device
