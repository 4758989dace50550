from pathlib import Path

import pytest

from tests.tiny_vision import write_image_folder
from training.data.faults import DataError
from training.data.images.image_folder import ImageFolder


def test_images_are_read_by_class(tmp_path: Path) -> None:
    source = ImageFolder(write_image_folder(tmp_path / "shapes", 2))
    (tmp_path / "shapes" / ".DS_Store").write_text("")
    rows = list(source.read())
    assert rows[0] == (1, {"image": "blue/000.png", "label": "blue"})
    assert [number for number, _ in rows] == [1, 2, 3, 4, 5, 6]
    assert source.position == source.measure() > 0


def test_fingerprint_changes_with_names_and_contents(tmp_path: Path) -> None:
    folder = write_image_folder(tmp_path / "shapes", 2)
    found = {ImageFolder(folder).compute_fingerprint()}
    assert found == {ImageFolder(folder).compute_fingerprint()}
    file = folder / "red" / "000.png"
    file.write_bytes(file.read_bytes() + b"\0")
    found.add(ImageFolder(folder).compute_fingerprint())
    file.rename(folder / "red" / "009.png")
    found.add(ImageFolder(folder).compute_fingerprint())
    assert len(found) == 3


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("notes.txt", '^the folder .shapes. has other files beside .*: "notes.txt"; remove them'),
        ("red/labels.csv", '^the folder .shapes/red. has other entries than images: "labels.csv"'),
        ("red/more/000.png", '^the folder .shapes/red. has other entries than images: "more"; exp'),
        ("empty/", "^the folder .shapes/empty. has no images: add some, or remove the folder$"),
    ],
)
def test_unexpected_entry_is_named(tmp_path: Path, path: str, message: str) -> None:
    folder = write_image_folder(tmp_path / "shapes", 1)
    added = folder / path
    added.parent.mkdir(exist_ok=True)
    if path.endswith("/"):
        added.mkdir()
    else:
        added.write_text("")
    with pytest.raises(DataError, match=message):
        ImageFolder(folder).measure()


def test_folder_without_classes_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.png").write_bytes(b"")
    with pytest.raises(DataError, match="has no sub-folders: expected one for each class"):
        ImageFolder(tmp_path).measure()


def test_link_out_of_the_folder_is_refused(tmp_path: Path) -> None:
    folder = write_image_folder(tmp_path / "shapes", 1)
    (tmp_path / "secret.png").write_bytes(b"")
    (folder / "red" / "link.png").symlink_to(tmp_path / "secret.png")
    with pytest.raises(DataError, match='"red/link.png" is a link out of the rows. folder'):
        ImageFolder(folder).measure()
