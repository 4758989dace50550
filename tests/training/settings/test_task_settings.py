from typing import Any

import pytest
from pydantic import ValidationError

from training.spec import TrainingSpec, describe_validation_error
from training.task import list_tasks

CLASSIFY = {"task": "sequence_classification"}


def make_spec(**settings: Any) -> TrainingSpec:
    return TrainingSpec.model_validate({"base_model": "m", "train_file": "f", **settings})


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            {"task": "classify"},
            "^task is 'classify', expected one of 'causal_lm', .*'sequence_classification'",
        ),
        (
            {"task_settings": {"labels": ["a"]}},
            "^task_settings of task 'causal_lm': 'labels' is not a setting; ",
        ),
        (
            {**CLASSIFY, "task_settings": {"label": ["a"]}},
            "^task_settings of task 'sequence_classification': 'label' is not a setting; the "
            "settings are: labels, class_weights, problem_type$",
        ),
        (
            {**CLASSIFY, "task_settings": {"class_weights": {"a": 0}}},
            "^task_settings of task 'sequence_classification': class_weights is .*, expected "
            "'equal', 'balanced', or a number above zero for each class",
        ),
        (
            {**CLASSIFY, "task_settings": {"labels": ["a", "b", "a"]}},
            '^task_settings of .*: labels has "a" more than once, expected it once$',
        ),
        (
            {
                **CLASSIFY,
                "task_settings": {"class_weights": "balanced", "problem_type": "regression"},
            },
            "^task_settings.class_weights is 'balanced', which needs one class for each row; ",
        ),
        (
            {**CLASSIFY, "learned_turns": "last"},
            "^learned_turns is 'last', which means nothing to task 'sequence_classification': ",
        ),
        (
            {"best_metric": "f1"},
            "^best_metric is 'f1', expected one of the figures of task 'causal_lm': 'loss'$",
        ),
        (
            {**CLASSIFY, "best_metric": "f1", "task_settings": {"problem_type": "regression"}},
            "^best_metric is 'f1', expected one of the figures of .*: 'loss', 'pearson'$",
        ),
        (
            {"strategy": "ddp", "offload_optimizer": True, "zero_stage": 1},
            "^strategy is 'ddp', and DeepSpeed is configured by offload_optimizer: remove it, ",
        ),
        (
            {"strategy": "ddp", "precision": "fp16"},
            "^precision is 'fp16', which needs a loss scale, and strategy 'ddp' has none: ",
        ),
    ],
)
def test_settings_that_do_not_fit_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError) as caught:
        make_spec(**settings)
    with pytest.raises(ValueError, match=message):
        raise ValueError(describe_validation_error(caught.value))


def test_modules_in_folder_are_tasks() -> None:
    assert {"causal_lm", "sequence_classification"} <= set(list_tasks())


@pytest.mark.parametrize(
    ("settings", "is_lower_better"),
    [
        ({}, True),
        ({**CLASSIFY, "best_metric": "f1"}, False),
        ({**CLASSIFY, "best_metric": "f1", "best_direction": "lowest"}, True),
    ],
)
def test_best_direction_depends_on_metric(settings: dict[str, Any], is_lower_better: bool) -> None:
    assert make_spec(**settings).criterion.is_lower_better is is_lower_better
