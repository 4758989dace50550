import re
from pathlib import Path

import pytest

from storage.layout import StorageLayout, open_storage


def test_the_paths_below_the_root(tmp_path: Path) -> None:
    layout = StorageLayout(tmp_path)
    found = {
        "files/file-1": layout.file("file-1"),
        "runs/run-1": layout.run("run-1"),
        "models/model-1": layout.model("model-1"),
        "evaluations/eval-1": layout.evaluations.find("eval-1"),
        "cache/tokens": layout.token_cache,
        ".queue.lock": layout.queue_lock,
        ".upload.lock": layout.upload_lock,
        ".export.lock": layout.export_lock,
        ".import.lock": layout.import_lock,
        "aliases.json": layout.store.aliases,
        "aliases.copy.json": layout.store.aliases_copy,
        ".aliases.lock": layout.store.alias_lock,
        "handovers.jsonl": layout.store.handovers,
        ".handover-machine.lock": layout.store.handover_lock("machine"),
        "keys.json": layout.access.keys,
        "keys.required": layout.access.keys_marker,
        ".keys.lock": layout.access.keys_lock,
        "audit.jsonl": layout.access.audit,
        ".audit.lock": layout.access.audit_lock,
    }
    assert found == {name: tmp_path / name for name in found}


@pytest.mark.parametrize("identifier", ["", "..", "../x", "a/b", ".hidden", "x" * 129])
def test_an_id_that_is_not_a_plain_name_is_refused(tmp_path: Path, identifier: str) -> None:
    layout = open_storage(tmp_path)
    for find in (layout.file, layout.run, layout.model, layout.evaluations.find):
        expected = f"{identifier!r} is not a valid id: expected 1 to 128 letters"
        with pytest.raises(ValueError, match=f"^{re.escape(expected)}"):
            find(identifier)
