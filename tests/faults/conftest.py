"""Fixtures shared with the other test tiers, and a disk of adjustable size."""

import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.apps.conftest import client, jobs, layout, queue, services, tiny_model
from tests.e2e.conftest import ray_folder

__all__ = ["client", "jobs", "layout", "queue", "ray_folder", "services", "tiny_model"]


@dataclass(frozen=True)
class SmallDisk:
    """A separate file system in memory whose size can be changed."""

    path: Path

    def resize(self, size_bytes: int) -> None:
        """Resize the file system to `size_bytes`; its content is preserved."""
        subprocess.run(
            ["mount", "-o", f"remount,size={size_bytes}", self.path], check=True, timeout=30
        )

    def count_used_bytes(self) -> int:
        """Return the number of used bytes."""
        found = subprocess.run(
            ["df", "--output=used", "-B1", self.path], check=True, capture_output=True, text=True
        )
        return int(found.stdout.split()[-1])

    def leave_free(self, size_bytes: int) -> None:
        """Resize the file system so that `size_bytes` are free."""
        self.resize(self.count_used_bytes() + size_bytes)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[SmallDisk]:
    folder = tmp_path / "disk"
    folder.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=64m", "tmpfs", folder], capture_output=True, text=True
    )
    if mounted.returncode:
        pytest.skip(f"this user may not mount a file system: {mounted.stderr.strip()}")
    yield SmallDisk(folder)
    subprocess.run(["umount", "--lazy", folder], check=True, timeout=30)
