"""Sharded checkpoints: every worker writes its own shard, and Ray Train joins them."""

import tempfile
from pathlib import Path
from typing import Any

TAG = "state"


def save_checkpoint(engine: Any, metrics: dict[str, float]) -> None:
    """Save the engine's shards and report them; every worker must call this together.

    `metrics` (step, epoch, loss) go to Ray Train, which keeps or drops checkpoints by them.
    """
    import ray.train

    with tempfile.TemporaryDirectory(prefix="checkpoint-") as folder:
        engine.save_checkpoint(folder, tag=TAG, client_state={"progress": metrics})
        ray.train.report(metrics, checkpoint=ray.train.Checkpoint.from_directory(folder))


def find_shards(checkpoint: Path) -> Path:
    """Return the folder of shards that a checkpoint's `latest` file names.

    Raises `ValueError` if this is no DeepSpeed checkpoint.
    """
    latest = checkpoint / "latest"
    if not latest.is_file():
        raise ValueError(f"{str(checkpoint)!r} is no DeepSpeed checkpoint: it has no file 'latest'")
    shards = checkpoint / latest.read_text().strip()
    if not shards.is_dir():
        raise ValueError(f"{str(checkpoint)!r} names the shards {shards.name!r}, which are gone")
    return shards
