import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from storage.scratch import ScratchFolder, build_in_scratch, list_scratch
from tests.waiting import wait_until


def test_what_is_built_stays_once_it_is_renamed_away(tmp_path: Path) -> None:
    with build_in_scratch(tmp_path, ".model.building-") as building:
        (building / "weights").write_text("w")
        building.rename(tmp_path / "model")
    assert [path.name for path in tmp_path.iterdir()] == ["model"]
    with pytest.raises(ZeroDivisionError), build_in_scratch(tmp_path, ".model.building-"):
        _ = 1 / 0
    assert [path.name for path in tmp_path.iterdir()] == ["model"]


def test_only_what_a_dead_process_left_is_swept(tmp_path: Path) -> None:
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


def test_what_was_killed_while_it_removed_is_swept(tmp_path: Path) -> None:
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


def test_a_removal_that_was_cut_short_is_finished_by_the_next(tmp_path: Path) -> None:
    for name in (".a-empty", ".a-unowned"):
        (tmp_path / name).mkdir()
    (tmp_path / ".a-unowned" / "content").mkdir()  # its lock may be invisible only temporarily
    with build_in_scratch(tmp_path, ".a-"):
        assert not (tmp_path / ".a-empty").exists()
        assert (tmp_path / ".a-unowned" / "content").is_dir()


def test_the_lock_is_removed_last(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def be_killed(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    scratch = ScratchFolder(tmp_path, ".a-")
    (scratch.path / "half").touch()
    monkeypatch.setattr(shutil, "rmtree", be_killed)
    with pytest.raises(KeyboardInterrupt):
        scratch.remove()
    (left,) = tmp_path.iterdir()
    assert (left / ".lock").is_file()


def test_folder_stays_while_a_process_that_inherited_its_lock_works(tmp_path: Path) -> None:
    code = (
        "import os, subprocess, sys; from pathlib import Path;"
        "from storage.scratch import ScratchFolder;"
        "scratch = ScratchFolder(Path(sys.argv[1]), '.a-');"
        "child = subprocess.Popen(['sleep', '60'], pass_fds=(scratch.lock_descriptor,));"
        "print(child.pid, flush=True); os._exit(1)"
    )
    command = [sys.executable, "-c", code, str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as parent:
        assert parent.stdout is not None
        child = int(parent.stdout.readline())
    ScratchFolder(tmp_path, ".a-").remove()
    assert len(list_scratch(tmp_path, ".a-")) == 1
    os.kill(child, 9)
    wait_until(lambda: not list_scratch(tmp_path, ".a-"), 10, "its lock is released")
    ScratchFolder(tmp_path, ".a-").remove()
    assert list(tmp_path.iterdir()) == []


def test_only_folders_that_a_process_owns_are_listed(tmp_path: Path) -> None:
    (tmp_path / ".a-left").mkdir()
    (tmp_path / ".a-left" / ".lock").touch()
    (tmp_path / ".a-none").mkdir()
    owned = ScratchFolder(tmp_path, ".b-")
    assert list_scratch(tmp_path, ".a-") == []
    assert list_scratch(tmp_path, ".b-") == [owned.path.parent.name]
    owned.remove()
    assert list_scratch(tmp_path, ".b-") == []
