"""Threads of one process that import transformers at the same time."""

import subprocess
import sys
from pathlib import Path

_SCRIPT = """
import sys
import threading
from pathlib import Path

import datasets, pyarrow, tokenizers, torch  # so that all threads come to transformers at once

from apps.fine_tuning.validation.row_validation import check_file
from apps.file_store import FileStore
from apps.fine_tuning.index.run_index import RunIndex
from apps.fine_tuning.submission import JobCreator
from apps.fine_tuning.index.model_sizes import ModelSizes
from apps.settings import UsageLimits
from serving.store.model_store import ModelStore
from storage.layout import open_storage

model, root = map(Path, sys.argv[1:])
layout = open_storage(root)
files, store = FileStore(layout), ModelStore(layout)
store.add(model, "tiny")
store.point_alias("latest", "tiny")
for name in ("file-a", "file-b"):
    files.add(name, b'{"prompt": "How many loaves?", "completion": "Twelve."}\\n', "rows.jsonl")
assert "transformers" not in sys.modules
intake = JobCreator(layout, RunIndex(layout), ModelSizes(layout), UsageLimits(), 0.0, 0.0)
calls = [
    lambda: intake.preview("file-a", "tiny", 1, {}),
    lambda: check_file(layout, "file-a"),
    lambda: check_file(layout, "file-b"),
    lambda: intake.preview("file-b", "tiny", 1, {}),
]
failures = []
begin = threading.Barrier(len(calls))

def run(call):
    begin.wait()
    try:
        call()
    except ImportError as exc:
        failures.append(str(exc))

threads = [threading.Thread(target=run, args=[call]) for call in calls]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
print(failures)
assert not failures
"""


def test_concurrent_imports_of_transformers_succeed(tmp_path: Path, tiny_model: Path) -> None:
    subprocess.run(
        [sys.executable, "-c", _SCRIPT, tiny_model, tmp_path / "storage"], check=True, timeout=240
    )
