from pathlib import Path

import pytest

from apps.server.deploy_file import DeployFileError, find_storage
from apps.settings import ApplicationSettings
from storage.layout import open_storage
from storage.local_paths import check_local_path


@pytest.mark.parametrize(
    "place", ["s3://bucket/run", "gs://b/x", "hf://datasets/a/b", "https://host/f", Path("S3://b")]
)
def test_a_url_is_refused_where_a_path_is_expected(place: str | Path) -> None:
    with pytest.raises(ValueError, match=r"^train_file is .*, expected a path of the file system"):
        check_local_path("train_file", place)


@pytest.mark.parametrize("place", ["", "rows.jsonl", "/data/a:b/rows.jsonl", "owner/model", "C:/x"])
def test_a_path_and_an_id_on_the_hub_are_no_urls(place: str) -> None:
    check_local_path("train_file", place)


def test_a_storage_root_is_no_url(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Previously, it became a folder 's3:' in the working directory."""
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError, match=r"^storage is 's3://bucket', expected a path"):
        open_storage("s3://bucket")
    with pytest.raises(
        ValueError, match=r"\n  Value error, storage is 's3://bucket', expected a path"
    ):
        ApplicationSettings(storage="s3://bucket")
    with pytest.raises(ValueError, match=r"\n  Value error, base_models.a is 'hf://a/b', expected"):
        ApplicationSettings(base_models={"a": "hf://a/b"})
    deploy = tmp_path / "deploy.yaml"
    deploy.write_text("applications: [{args: {storage: 's3://bucket'}}]")
    with pytest.raises(DeployFileError, match=r"^the deploy file .*: storage is 's3://bucket'"):
        find_storage(deploy)
    assert [path.name for path in tmp_path.iterdir()] == ["deploy.yaml"]
