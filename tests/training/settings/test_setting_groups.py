"""Each setting of a spec is in one group, which its JSON schema names."""

from training.settings.setting_groups import SETTING_GROUPS
from training.spec import TrainingSpec


def test_each_setting_is_in_one_group() -> None:
    grouped = [name for names in SETTING_GROUPS.values() for name in names]
    assert sorted(grouped) == sorted(TrainingSpec.model_fields)


def test_schema_names_group_of_each_setting() -> None:
    schema = TrainingSpec.model_json_schema()
    groups = {name: part["group"] for name, part in schema["properties"].items()}
    assert list(groups) == [name for names in SETTING_GROUPS.values() for name in names]
    assert groups["learning_rate"] == "optimizer"
    assert "description" in schema["properties"]["learning_rate"]
