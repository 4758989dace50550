"""The README.md of a run's model, in the hub's model card format."""

from collections.abc import Mapping
from typing import Any

import yaml


def render_model_card(lineage: Mapping[str, Any]) -> str:
    """Render a card from the lineage: YAML metadata, then text and figures."""
    data, spec, metrics = lineage["data"], lineage["spec"], lineage["metrics"]
    epochs = f"{metrics['epoch']} of {spec['epochs']}"
    metadata = {
        "base_model": lineage["base_model"],
        "base_model_relation": "finetune",
        "library_name": "transformers",
        "pipeline_tag": "text-generation",
        "tags": ["tuneserve", "fine-tuned"],
        **_index_validation(lineage),
    }
    packages = ", ".join(f"{name} {found}" for name, found in lineage["packages"].items())
    return f"""---
{yaml.safe_dump(metadata, sort_keys=False).strip()}
---

# {lineage["base_model"]}, fine-tuned on {data["name"]}

`{lineage["base_model"]}`, trained on {data["num_rows"]} rows of `{data["name"]}`
({data["num_tokens"]:,} tokens, {_describe_learned(data)}).

| | |
|---|---|
| run | `{lineage["run_id"]}` |
| base model, content | `{lineage["base_model_revision"]}` |
{_render_root(lineage)}| checkpoint | step {lineage["checkpoint_step"]}, in epoch {epochs} |
| training loss of the epoch | {metrics["loss"]:.4f} |
{_render_validation(metrics)}| learning rate | {spec["learning_rate"]:g}, {spec["lr_schedule"]} |
| precision | {spec["precision"]} |
| data, {"SHA-256" if data["sha256"] else "fingerprint"} | `{data["fingerprint"]}` |
| made with | {packages} |

The chat template in this folder is the one that the model was trained with.
"""


def _render_root(lineage: Mapping[str, Any]) -> str:
    """Render the row of the first base model in a chain of fine-tunes, if it differs."""
    root = lineage["root"]
    if root["base_model"] == lineage["base_model"]:
        return ""
    return f"| first base model | `{root['base_model']}`, `{root['base_model_revision']}` |\n"


def _index_validation(lineage: Mapping[str, Any]) -> dict[str, Any]:
    """Build the hub's result metadata for the validation loss; empty without one."""
    metrics, name = lineage["metrics"], lineage["data"]["name"]
    if "eval_loss" not in metrics:
        return {}
    measured = [{"type": "loss", "name": "validation loss", "value": metrics["eval_loss"]}]
    task = {"type": "text-generation"}
    dataset = {"name": f"held-out rows of {name}", "type": "private"}
    result = {"task": task, "dataset": dataset, "metrics": measured}
    return {"model-index": [{"name": lineage["run_id"], "results": [result]}]}


def _render_validation(metrics: Mapping[str, Any]) -> str:
    if "eval_loss" not in metrics:
        return ""
    return f"| validation loss | {metrics['eval_loss']:.4f} |\n"


def _describe_learned(data: Mapping[str, Any]) -> str:
    return str(data.get("description", f"{data['num_learned_tokens']:,} of them learned"))
