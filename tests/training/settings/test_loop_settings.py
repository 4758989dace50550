from typing import Any

import pytest

from training.settings.spec_file import read_spec_file
from training.spec import TrainingSpec

LOOP = {"base_model": "m", "train_file": "f", "loop": "package.module:train_func"}


@pytest.mark.parametrize("name", ["train_func", "a:b:c", "a.b", "os.path:", ":f", "a b:c", "a.1:f"])
def test_name_of_another_form_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match=r"loop is .*, expected 'package.module:function'"):
        TrainingSpec.model_validate({**LOOP, "loop": name})


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"micro_batch_size": 4},
            "micro_batch_size is 4, which has no effect on the loop",
        ),
        ({"strategy": "ddp"}, "strategy is 'ddp', which has no effect on the loop"),
        ({"loop_config": {"epochs": 3}}, "loop_config has 'epochs', which the loop receives from"),
        ({"loop_config": {"base_model": "/etc"}}, "loop_config has 'base_model'"),
        (
            {"loop_config": {"text": "x" * 70_000}},
            "loop_config has .* bytes as JSON, expected at most 65536",
        ),
        ({"loop": None, "loop_config": {"lr": 1}}, "loop_config is set, and loop is not"),
        ({"loop": None, "loop_split": "none"}, "loop_split is set, and loop is not"),
        ({"train_file": None, "loop": None}, "and none of them is set"),
        (
            {"train_file": None, "train_files": [{"file": "a", "weight": 2}]},
            "train_files has a weight other than 1 for 'a'",
        ),
    ],
)
def test_settings_without_effect_are_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        TrainingSpec.model_validate({**LOOP, **changes})


def test_loop_may_choose_by_any_metric_and_read_its_own_rows() -> None:
    spec = TrainingSpec.model_validate(
        {**LOOP, "train_file": None, "keep": "best", "best_metric": "eval_bleu"}
    )
    assert spec.criterion.metric == "bleu"
    assert not spec.criterion.is_lower_better
    assert TrainingSpec.model_validate(spec.model_dump(mode="json")) == spec


def test_example_is_a_spec() -> None:
    from tests.e2e.conftest import ROOT

    for path in (ROOT / "examples" / "loops").glob("*.yaml"):
        assert TrainingSpec.model_validate(read_spec_file(path)).loop
