"""What a request for text asks for, and what its answer comes from."""

from typing import Literal

from serving.model_store import StoredModel

RequestKind = Literal["chat", "completion"]
Origin = dict[str, str | None]


def describe_origin(model: StoredModel) -> Origin:
    """Name what an answer comes from; None where the model's lineage does not say."""
    lineage = model.lineage
    step = lineage.checkpoint_step
    return {
        "model_id": model.id,
        "run_id": lineage.run_id,
        "checkpoint": None if step is None else f"step-{step}",
        "dataset_sha256": lineage.data.sha256 if lineage.data else None,
        "system_fingerprint": model.fingerprint,
    }
