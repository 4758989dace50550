from pathlib import Path
from typing import Any

import pytest

from apps.fine_tuning.index.model_sizes import ModelSizes
from model_files.weight_headers import read_weight_headers
from storage.layout import StorageLayout
from training.spec import TrainingSpec


@pytest.fixture
def weight_bytes(layout: StorageLayout) -> int:
    """The bytes of the weights of the model 'tiny', which are in fp32."""
    headers = read_weight_headers(layout.model("tiny"))
    return sum(header.size_bytes for header in headers.values())


def make_spec(base_model: Path, **changes: Any) -> TrainingSpec:
    values = {"base_model": str(base_model), "train_file": "r", "precision": "bf16"}
    return TrainingSpec.model_validate({**values, **changes})


@pytest.mark.parametrize("adapter", [None, {"export": "merged"}])
def test_complete_model_is_as_large_as_its_base(
    layout: StorageLayout, weight_bytes: int, adapter: dict[str, Any] | None
) -> None:
    sizes = ModelSizes(layout)
    base, stored = layout.model("tiny"), sizes.measure_model("tiny")
    num_learned = 1000 if adapter else None
    assert sizes.estimate_published(make_spec(base, adapter=adapter), num_learned) == stored
    halved = make_spec(base, adapter=adapter, export_dtype="bf16")
    assert sizes.estimate_published(halved, num_learned) == stored - weight_bytes // 2


def test_adapter_has_learned_weights_and_other_files_of_its_base(
    layout: StorageLayout, weight_bytes: int
) -> None:
    sizes = ModelSizes(layout)
    other_bytes = sizes.measure_model("tiny") - weight_bytes
    for changes, num_bytes in (({}, 2), ({"init": "pissa"}, 4)):
        spec = make_spec(layout.model("tiny"), adapter={"export": "adapter", **changes})
        expected = other_bytes + 1.1 * num_bytes * 1000
        assert sizes.estimate_published(spec, 1000) == pytest.approx(expected, abs=2)


@pytest.mark.parametrize("base_model", ["gone", "owner/gone", "."])
def test_base_that_is_not_stored_counts_nothing(layout: StorageLayout, base_model: str) -> None:
    spec = make_spec(Path(base_model), export_dtype="bf16")
    assert ModelSizes(layout).estimate_published(spec, None) == 0
