"""What the workers request from a stream: where it begins, and how its rows are divided.

The first worker writes the request into the run's folder before the workers iterate over the
stream, and every task reads it. So the workers decide where to resume, by the checkpoint that they
agreed on, and not the process that built the pipeline.
"""

from pathlib import Path

from pydantic import BaseModel, ConfigDict

from storage import durable
from training.batching import BatchLayout
from training.data.faults import RowRole

MAX_WINDOWS = 2048
"""Windows of one execution of a pipeline; the workers then start another."""


class StreamRequest(BaseModel):
    """The first step of a stream, by its window, and the workers among which rows are divided."""

    model_config = ConfigDict(frozen=True)

    epoch: int
    window: int
    step: int
    world_size: int
    num_shares: int
    layout: BatchLayout

    def save(self, data: Path, role: RowRole) -> None:
        """Write the request to the data folder of a run."""
        durable.write_json(_get_path(data, role), self.model_dump())


def read_request(data: Path, role: RowRole) -> StreamRequest:
    """Read the request of the workers."""
    return StreamRequest.model_validate(durable.read_json(_get_path(data, role)))


def _get_path(data: Path, role: RowRole) -> Path:
    return data / f"{role}_stream.json"
