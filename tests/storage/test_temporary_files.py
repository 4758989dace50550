import os
import tempfile
import time
from pathlib import Path

import pytest

from storage import durable
from storage.layout import StorageLayout, open_storage
from storage.temporary_files import MIN_AGE_S, remove_old_temporaries
from storage.writable_check import PROBE_PREFIX

REPLACED = [
    "aliases.json",
    "aliases.copy.json",
    "keys.json",
    "files/file-1/file.json",
    "files/file-1/check.json",
    "files/file-1/data_step_metrics.csv",
    "runs/ftjob-1/run.json",
    "runs/ftjob-1/spec.json",
    "runs/ftjob-1/metrics.jsonl",
    "runs/ftjob-1/pause",
    "runs/ftjob-1/progress.json",
    "runs/ftjob-1/refusal.json",
    "runs/ftjob-1/data/summary.json",
    "runs/ftjob-1/exports/tiny-step-4.json",
    "runs/ftjob-1/ray/checkpoints/last_complete.json",
    "runs/ftjob-1/ray/checkpoints/checkpoint_0000000004/manifest-00001.json",
]
FOREIGN = [
    ".env.template",
    ".probe-of-mine",
    ".probe-UPPERCAS",
    ".notes.json.abcd1234",
    "runs/.run.json.abcd1234",
    "runs/ftjob-1/.run.json.backup",
    "runs/ftjob-1/.notes.txt.abcd1234",
    "runs/ftjob-1/.driver.lock",
    "runs/ftjob-1/run.json.abcd1234",
    "runs/ftjob-1/ray/checkpoints/.notes.abcd1234",
]


class KilledError(BaseException):
    """An exception that simulates SIGKILL: no code after it runs."""


@pytest.fixture
def layout(tmp_path: Path) -> StorageLayout:
    return open_storage(tmp_path / "storage")


def list_files(layout: StorageLayout) -> list[str]:
    found = (path for path in layout.root.rglob("*") if path.is_file())
    return sorted(str(path.relative_to(layout.root)) for path in found)


def set_age(path: Path, seconds: float) -> None:
    then = time.time() - seconds
    os.utime(path, (then, then))


@pytest.fixture
def leftovers(layout: StorageLayout, monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """The temporary files of writers that were killed before the rename."""

    def raise_killed(*_: object) -> None:
        raise KilledError

    with monkeypatch.context() as patched:
        patched.setattr("os.replace", raise_killed)
        patched.setattr(Path, "unlink", lambda *_, **__: None)
        for name in REPLACED:
            path = layout.root / name
            path.parent.mkdir(parents=True, exist_ok=True)
            with pytest.raises(KilledError):
                durable.write_bytes(path, b"{}")
    return [layout.root / name for name in list_files(layout)]


def test_old_temporary_files_of_killed_writers_are_removed(
    layout: StorageLayout, leftovers: list[Path]
) -> None:
    assert len(leftovers) == len(REPLACED)
    remove_old_temporaries(layout)
    assert len(list_files(layout)) == len(REPLACED), "a living process may be writing them"
    for path in leftovers:
        set_age(path, MIN_AGE_S + 60)
    remove_old_temporaries(layout)
    assert list_files(layout) == []


def test_old_files_of_killed_disk_probes_are_removed(
    layout: StorageLayout,
) -> None:
    for _ in range(20):
        descriptor, path = tempfile.mkstemp(dir=layout.root, prefix=PROBE_PREFIX)
        os.close(descriptor)
        set_age(Path(path), MIN_AGE_S + 60)
    remove_old_temporaries(layout)
    assert list_files(layout) == []


def test_files_with_other_names_are_kept(layout: StorageLayout) -> None:
    for name in [*REPLACED, *FOREIGN]:
        path = layout.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("{}")
        set_age(path, 10 * MIN_AGE_S)
    (layout.root / ".aliases.json.abcd1234").mkdir()
    (layout.root / ".keys.json.abcd1234").symlink_to(layout.root / "keys.json")
    before = list_files(layout)
    remove_old_temporaries(layout)
    assert list_files(layout) == before
