from pathlib import Path

import pytest

from apps.server.deploy_file import DeployFileError, find_storage
from apps.settings import ApplicationSettings
from storage.layout import open_storage
from storage.local_paths import check_local_path, hide_credentials


@pytest.mark.parametrize(
    "value", ["s3://bucket/run", "gs://b/x", "hf://datasets/a/b", "https://host/f", Path("S3://b")]
)
def test_url_is_rejected_as_path(value: str | Path) -> None:
    with pytest.raises(ValueError, match=r"^train_file is .*, expected a path of the file system"):
        check_local_path("train_file", value)


@pytest.mark.parametrize("value", ["", "rows.jsonl", "/data/a:b/rows.jsonl", "owner/model", "C:/x"])
def test_paths_and_hub_ids_are_accepted(value: str) -> None:
    check_local_path("train_file", value)


@pytest.mark.parametrize(
    ("place", "shown"),
    [
        ("s3://key:secret@rows/a.jsonl?region=x", "s3://…@rows/a.jsonl"),
        ("https://name:se/c@r?t@host/f", "https://…@host/f"),
        ("s3://rows/a.jsonl?token=secret", "s3://rows/a.jsonl"),
        ("/data/a@b?.jsonl", "/data/a@b?.jsonl"),
    ],
)
def test_credentials_of_url_are_not_shown(place: str, shown: str) -> None:
    assert hide_credentials(place) == shown


def test_url_is_rejected_as_storage_root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Previously, it became a folder 's3:' in the working directory."""
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError, match=r"^storage is 's3://bucket', expected a path"):
        open_storage("s3://bucket")
    with pytest.raises(
        ValueError,
        match="^1 validation error for ApplicationSettings\nstorage\n  Value error, "
        "storage is 's3://bucket', expected a path",
    ):
        ApplicationSettings(storage="s3://bucket")
    with pytest.raises(
        ValueError,
        match="^1 validation error for ApplicationSettings\nbase_models\n  Value error, "
        "base_models.a is 'hf://a/b', expected",
    ):
        ApplicationSettings(base_models={"a": "hf://a/b"})
    deploy = tmp_path / "deploy.yaml"
    deploy.write_text("applications: [{args: {storage: 's3://bucket'}}]")
    with pytest.raises(DeployFileError, match=r"^the deploy file .*: storage is 's3://bucket'"):
        find_storage(deploy)
    assert [path.name for path in tmp_path.iterdir()] == ["deploy.yaml"]
