from typing import Any

import pytest
from pydantic import ValidationError

from training.spec import TrainingSpec, describe_validation_error
from training.task import list_tasks

CLASSIFY = {"task": "sequence_classification"}
PIPELINE = {"strategy": "pipeline"}


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
            "^strategy is 'ddp', which does not support offload_optimizer: remove it, ",
        ),
        (
            {"strategy": "ddp", "precision": "fp16"},
            "^precision is 'fp16', which needs a loss scale, and strategy 'ddp' has none: ",
        ),
        (
            {**CLASSIFY, "strategy": "pipeline"},
            "^strategy is 'pipeline', which cuts language models only, and task is 'sequence_c",
        ),
        ({"pipeline_stages": 2}, "^pipeline_stages is 2, and strategy is 'zero': remove it, or "),
        ({**PIPELINE, "zero_stage": 3}, "^zero_stage is 3, and a pipeline has 1: "),
        ({**PIPELINE, "num_workers": 1}, "^num_workers is 1, expected a multiple of the 2 or more"),
        (
            {**PIPELINE, "num_workers": 5, "pipeline_stages": 2},
            "^num_workers is 5, expected a multiple of the 2 stages of the pipeline: ",
        ),
        (
            {**PIPELINE, "min_workers": 2, "save_every_steps": 5},
            "^min_workers is 2, and a pipeline cannot continue without one of its stages: ",
        ),
        ({**PIPELINE, "batch_layout": "flattened"}, "^batch_layout is 'flattened', and a pipeline"),
        ({**PIPELINE, "data_engine": "ray"}, "^data_engine is 'ray', which divides rows among"),
        (
            {**PIPELINE, "deepspeed": {"steps_per_print": 5}},
            "^strategy is 'pipeline', which does not support deepspeed: remove it, or set strategy",
        ),
        ({**PIPELINE, "precision": "fp16"}, "^precision is 'fp16', which needs a loss scale, and "),
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


def test_pipeline_has_as_many_stages_as_workers_unless_it_has_replicas() -> None:
    spec = make_spec(**PIPELINE, num_workers=4)
    assert (spec.num_stages, spec.num_replicas, spec.zero_stage) == (4, 1, 1)
    spec = make_spec(**PIPELINE, num_workers=4, pipeline_stages=2)
    assert (spec.num_stages, spec.num_replicas) == (2, 2)
    spec = make_spec(num_workers=4)
    assert (spec.num_stages, spec.num_replicas, spec.zero_stage) == (1, 4, 3)
