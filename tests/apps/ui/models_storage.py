"""A real API over a real storage with models, for tests of the page "Models" without Ray."""

import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from apps.fine_tuning.queue import RunQueue
from apps.http_api.app import build_http
from apps.http_api.dependencies import Services
from serving.store.handover_log import HandoverEvent, HandoverLog
from serving.store.model_store import ModelStore
from storage.layout import StorageLayout, open_storage
from storage.lineage_file import LINEAGE_NAME
from tests.apps.conftest import NotedJobs, build_services
from tests.apps.stub_api import LocalServer

CARD = "---\nbase_model: tiny\n---\n\n# tiny, fine-tuned\n\n| | |\n|---|---|\n| run | `run-1` |\n"


class ModelsStorage:
    """A storage with the base model `tiny`; `services` are those of the API over it."""

    def __init__(self, root: Path, tiny_model: Path) -> None:
        self.layout: StorageLayout = open_storage(root / "storage")
        self.store = ModelStore(self.layout)
        self.store.add(tiny_model, "tiny")
        self._tiny_model = tiny_model
        self._scratch = root / "scratch"

    def add_tuned(self, model_id: str, base: str = "tiny", **changes: Any) -> None:
        """Add a model that a run made."""
        number = model_id.rpartition("-")[2]
        lineage = {
            "run_id": f"ftjob-{number}",
            "base_model": base,
            "base_model_revision": "sha256:00ff",
            "parent": None,
            "root": {"base_model": "tiny", "base_model_revision": "sha256:00ff"},
            "checkpoint_step": 294,
            "metrics": {"step": 294, "epoch": 3, "loss": 0.8123, "eval_loss": 0.9417},
            "data": {"name": "handbook.jsonl", "num_rows": 1200, "num_tokens": 48_000},
            "spec": {"epochs": 3, "learning_rate": 0.0002, "adapter": None},
            "packages": {"torch": "2.13.0"},
            "created_at": 1_795_000_000,
            **changes,
        }
        shutil.copytree(self._tiny_model, self._scratch)
        (self._scratch / LINEAGE_NAME).write_text(json.dumps(lineage))
        (self._scratch / "README.md").write_text(CARD)
        self.store.add(self._scratch, model_id)
        shutil.rmtree(self._scratch)

    def add_event(self, alias: str, model_id: str, outcome: Any, message: str) -> None:
        """Record what a generator did when an alias moved."""
        event = HandoverEvent(alias, outcome, model_id, None, message)
        HandoverLog(self.layout.store.handovers).add(event)

    @contextmanager
    def serve(self, **changes: Any) -> Iterator[str]:
        """Serve the API, and yield its address."""
        queue = RunQueue(self.layout, NotedJobs())
        services: Services = build_services(self.layout, queue, **changes)
        try:
            with LocalServer(build_http(services, None)) as url:
                yield url
        finally:
            queue.close()
