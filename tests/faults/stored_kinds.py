"""All kinds of files in a storage, as glob patterns relative to its root.

`tests/e2e/test_application.py` compares them with the storage of a real application.
"""

from fnmatch import fnmatch
from pathlib import Path

DAMAGED = {
    "file record": "files/{file}/file.json",
    "uploaded rows": "files/{file}/data_*.jsonl",
    "result of a file's check": "files/{file}/check.json",
    "run record": "runs/{run}/run.json",
    "run settings": "runs/{run}/spec.json",
    "run events": "runs/{run}/events.jsonl",
    "run metrics": "runs/{run}/metrics.jsonl",
    "run log": "runs/{run}/log.txt",
    "run data summary": "runs/{run}/data/summary.json",
    "run tokens": "runs/{run}/data/*.arrow",
    "checkpoint manifest": "runs/{run}/ray/checkpoints/checkpoint_*/manifest-*.json",
    "checkpoint": "runs/{run}/ray/checkpoints/checkpoint_*/state/zero_*.pt",
    "model configuration": "models/{model}/config.json",
    "model weights": "models/{model}/model.safetensors",
    "model tokenizer": "models/{model}/tokenizer.json",
    "model lineage": "models/{model}/lineage.json",
    "model manifest": "models/{model}/manifest.json",
    "evaluation record": "evaluations/{evaluation}/evaluation.json",
    "evaluation rows": "evaluations/{evaluation}/rows.jsonl",
    "aliases": "aliases.json",
    "copy of the aliases": "aliases.copy.json",
    "hand-overs": "handovers.jsonl",
    "audit log": "audit.jsonl",
}
"""The files that `test_damage` damages; the names in braces are placeholders."""

NOT_DAMAGED = {
    ".*.lock": "empty; its lock is in the kernel",
    ".queue.lock": "empty",
    "runs/*/.*.lock": "empty; its lock is in the kernel",
    "keys.json": "tests/apps/access/test_keys.py",
    "runs/*/log.*-*.txt": "as the run log",
    "runs/*/evaluations.jsonl": "tests/training/run/test_run_evaluations.py",
    "keys.required": "only its existence matters",
    "runs/*/cancel": "only its existence matters",
    "runs/*/pause": "its existence matters, and one word in it",
    "runs/*/heartbeat": "only its modification time matters",
    "runs/*/ray/.validate_storage_marker": "Ray Train's, never read",
    "runs/*/ray/checkpoints/last_complete.json": "tests/training/checkpoint/test_format.py",
    "runs/*/ray/checkpoints/checkpoint_*/latest": "as the checkpoint: tests/training",
    "runs/*/ray/checkpoints/checkpoint_*/state/*.pt": "as the checkpoint: tests/training",
    "runs/*/ray/checkpoints/checkpoint_*/probe.safetensors": "as the checkpoint: tests/training",
    "runs/*/ray/checkpoints/checkpoint_*/zero_to_*.py": "DeepSpeed's, never read",
    "runs/*/tensorboard/events.*": "written for other programs, never read",
    "merges/*.json": "tests/apps/fine_tuning/index/test_merge_notes.py",
    "transfers/*.json": "tests/apps/hub/test_hub_routes.py",
    "models/*/*_config.json": "as the model's configuration, by its manifest",
    "models/*/adapter_model.safetensors": "as the model's weights, by its manifest",
    "models/*/chat_template.jinja": "as the model's tokenizer, by its manifest",
    "models/*/pretraining.json": "of the demonstration, never read",
    "models/*/README.md": "written for users, never read",
    "models/*/verification.json": "written for users, never read",
    "cache/tokens/*/manifest.json": "tests/training/data/test_prepare.py",
    "cache/tokens/*/summary.json": "tests/training/data/test_prepare.py",
    "cache/tokens/*/findings.json": "as cached tokens, by the manifest of the entry",
    "cache/tokens/*/*.arrow": "tests/training/data/test_prepare.py",
    "files/*/check_tries.json": "tests/apps/fine_tuning/validation/test_validation_attempts.py",
    "runs/*/check_tries.json": "tests/apps/fine_tuning/validation/test_validation_attempts.py",
    "files/*/data_*.csv": "as uploaded rows; the metrics of a run",
    "files/*/data_*.zip": "tests/training/data/images/test_image_zip.py",
    "cache/tokens/*/*.parquet": "rows of loops, as tokens",
    "runs/*/data/references-*.safetensors": "tests/training/test_references.py",
    "runs/*/data/*.parquet": "rows of loops, as tokens",
}
"""The files that `test_damage` does not damage, with the reason or the test that covers them."""


def find_unknown_files(root: Path) -> list[str]:
    """Return the files below a storage root that match no pattern of this module."""
    anything = dict.fromkeys(("file", "run", "model", "evaluation"), "*")
    patterns = [pattern.format(**anything) for pattern in DAMAGED.values()]
    patterns += NOT_DAMAGED
    found = (str(path.relative_to(root)) for path in root.rglob("*") if path.is_file())
    return sorted(name for name in found if not any(fnmatch(name, pattern) for pattern in patterns))
