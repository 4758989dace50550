"""What a model's lineage says of its training, also in a file that another program wrote."""

import pytest

from serving.store.lineage import Lineage


@pytest.mark.parametrize("value", [10**400, -(10**400), float("nan"), True, "1.5", None, [1.0]])
def test_metrics_that_are_no_finite_numbers_are_left_out(value: object) -> None:
    lineage = Lineage.model_validate({"metrics": {"loss": value, "eval_f1": 1}})
    assert lineage.list_metrics() == {"eval_f1": 1.0}
