import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from storage.locks import HeldError, hold_alone, hold_shared
from storage.scratch import ScratchFolder, build_in_scratch


def test_renamed_content_of_scratch_folder_is_kept(tmp_path: Path) -> None:
    with build_in_scratch(tmp_path, ".model.building-") as building:
        (building / "weights").write_text("w")
        building.rename(tmp_path / "model")
    assert [path.name for path in tmp_path.iterdir()] == ["model"]
    with pytest.raises(ZeroDivisionError), build_in_scratch(tmp_path, ".model.building-"):
        _ = 1 / 0
    assert [path.name for path in tmp_path.iterdir()] == ["model"]


def test_only_scratch_folders_of_ended_processes_are_removed(tmp_path: Path) -> None:
    alive = ScratchFolder(tmp_path, ".a-")
    code = (
        "from pathlib import Path; from storage.scratch import ScratchFolder; import os, sys;"
        "ScratchFolder(Path(sys.argv[1]), '.a-').path.joinpath('half').touch(); os._exit(1)"
    )
    subprocess.run([sys.executable, "-c", code, str(tmp_path)], check=False)
    assert len(list(tmp_path.iterdir())) == 2
    ScratchFolder(tmp_path, ".a-").remove()
    assert alive.path.is_dir()
    assert len(list(tmp_path.iterdir())) == 1
    alive.remove()
    assert list(tmp_path.iterdir()) == []


def test_scratch_folder_without_lock_is_removed_after_a_while(tmp_path: Path) -> None:
    """The killed process may have removed the lock first."""
    left = ScratchFolder(tmp_path, ".a-")
    (left.path / "half").touch()
    (left.path.parent / ".lock").unlink()
    (tmp_path / ".a-file").touch()
    ScratchFolder(tmp_path, ".a-").remove()
    assert left.path.is_dir()  # the lock may be invisible only temporarily
    for path in (left.path, left.path.parent):
        os.utime(path, (0, 0))
    ScratchFolder(tmp_path, ".a-").remove()
    assert [path.name for path in tmp_path.iterdir()] == [".a-file"]
    left.remove()


def test_file_lock_is_shared_or_exclusive(tmp_path: Path) -> None:
    file = tmp_path / "manifest.json"
    file.touch()
    first, second = hold_shared(file), hold_shared(file)
    with pytest.raises(HeldError), hold_alone(file):
        pass
    first.close()
    second.close()
    with hold_alone(file):
        file.unlink()
    with pytest.raises(FileNotFoundError):
        hold_shared(file)


def test_empty_scratch_folder_without_lock_is_removed(tmp_path: Path) -> None:
    for name in (".a-empty", ".a-unowned"):
        (tmp_path / name).mkdir()
    (tmp_path / ".a-unowned" / "content").mkdir()  # its lock may be invisible only temporarily
    with build_in_scratch(tmp_path, ".a-"):
        assert not (tmp_path / ".a-empty").exists()
        assert (tmp_path / ".a-unowned" / "content").is_dir()


def test_lock_of_scratch_folder_is_removed_last(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def raise_interrupt(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    scratch = ScratchFolder(tmp_path, ".a-")
    (scratch.path / "half").touch()
    monkeypatch.setattr(shutil, "rmtree", raise_interrupt)
    with pytest.raises(KeyboardInterrupt):
        scratch.remove()
    (left,) = tmp_path.iterdir()
    assert (left / ".lock").is_file()
