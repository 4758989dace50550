import json
from pathlib import Path

import pytest

from apps.http_api.dependencies import Services
from tests.apps.cli.conftest import Call
from tests.tiny_encoder import build_tiny_encoder


@pytest.fixture
def classifier(services: Services, tmp_path: Path) -> str:
    services.models.add(build_tiny_encoder(tmp_path / "mood", num_labels=2), "mood")
    return "mood"


def test_classify_prints_labels(call: Call, classifier: str) -> None:
    status, output = call("classify", "a" * 50, "b", "-m", classifier)
    assert status == 0
    assert "long 0.500" in output
    assert "long 0.010 b" in output
    paired = json.loads(call("classify", "one", "two", "--pair", "-m", classifier, "--json")[1])
    assert [one["index"] for one in paired["data"]] == [0]


def test_invalid_classify_command_prints_error(call: Call, classifier: str) -> None:
    assert call("classify", "one", "--pair", "-m", classifier) == (
        1,
        "error: --pair needs an even number of texts, got 1",
    )
    status, output = call("classify", "one", "-m", "latest")
    assert status == 1
    assert "is a language model" in output


def test_images_are_classified(call: Call, classifier: str, tmp_path: Path) -> None:
    (tmp_path / "a.png").write_bytes(b"x" * 40)
    (tmp_path / "b.png").write_bytes(b"x" * 5)
    images = ("--image", str(tmp_path / "a.png"), "--image", str(tmp_path / "b.png"))
    status, output = call("classify", "-m", classifier, *images)
    assert status == 0, output
    assert "long 0.400" in output
    assert "b.png" in output
    assert call("classify", "-m", classifier) == (1, "error: expected either texts or --image")
    assert call("classify", "one", "-m", classifier, *images)[0] == 1
    status, output = call("classify", "-m", classifier, "--image", str(tmp_path / "gone.png"))
    assert (status, "gone.png" in output) == (1, True)
