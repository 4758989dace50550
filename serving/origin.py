"""The kind of a generation request, and the origin of its answer."""

from typing import Literal

from serving.store.model_store import StoredModel

RequestKind = Literal["chat", "completion"]
Origin = dict[str, str | None]


def describe_origin(model: StoredModel) -> Origin:
    """Describe the model that an answer comes from; None where its lineage lacks the value."""
    lineage = model.lineage
    step = lineage.checkpoint_step
    return {
        "model_id": model.id,
        "run_id": lineage.run_id,
        "checkpoint": None if step is None else f"step-{step}",
        "dataset_sha256": lineage.data.sha256 if lineage.data else None,
        "system_fingerprint": model.fingerprint,
    }
