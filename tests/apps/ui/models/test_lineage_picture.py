"""The lineage of a model as boxes."""

from apps.client.model_resources import Model
from apps.ui.models.lineage_picture import MAX_CHILDREN, Box, list_steps, render_lineage
from tests.apps.stub_api import HOSTILE

LINEAGE = {
    "base_model": "first-tuned",
    "root": {"base_model": "first"},
    "parent": {"data": {"name": "old.jsonl"}},
    "metrics": {"epoch": 2.5},
    "data": {"num_rows": 1200, "num_tokens": "many"},
}
TUNED = Model(
    id="second-tuned",
    run_id="ftjob-1",
    checkpoint_step=1294,
    tuned_from="first-tuned",
    data="rows.jsonl",
    metrics={"loss": 0.5},
    aliases=("latest", "production"),
)


def test_steps_lead_from_base_and_data_to_aliases() -> None:
    first, parent = Model(id="first", base=True), Model(id="first-tuned")
    inputs, run, checkpoint, model, aliases = list_steps(TUNED, LINEAGE, [first, parent, TUNED])
    base, data = inputs
    assert (base.name, base.href) == ("first-tuned", "./models?model=first-tuned")
    assert base.notes == ("fine-tuned on old.jsonl",)
    assert base.before == Box("First base model", "first", "./models?model=first")
    assert data == Box("Data", "rows.jsonl", notes=("1,200 rows",))
    assert run == [Box("Run", "ftjob-1", "./runs?run=ftjob-1")]
    assert checkpoint[0].name == "Step 1,294"
    assert checkpoint[0].notes == ("epoch 2.5", "training loss 0.500")
    assert model == [Box("Model", "second-tuned", is_current=True)]
    assert [box.href for box in aliases] == ["./chat?model=latest", "./chat?model=production"]


def test_deleted_base_has_no_link() -> None:
    ((base, _), *_) = list_steps(TUNED, {}, [TUNED])
    assert (base.href, base.notes, base.before) == (None, ("not stored here",), None)


def test_base_model_is_its_only_step_and_lists_its_children() -> None:
    base = Model(id="base", base=True)
    children = [
        Model(id=f"child-{number}", tuned_from="base") for number in range(MAX_CHILDREN + 2)
    ]
    assert list_steps(base, {}, [base]) == [[Box("Base model", "base", is_current=True)]]
    html = render_lineage(base, {}, [base, *children])
    assert html.count("data-open") == MAX_CHILDREN
    assert "and 2 more" in html


def test_names_are_escaped() -> None:
    model = Model(id=HOSTILE, tuned_from=HOSTILE, data=HOSTILE, run_id=HOSTILE, aliases=(HOSTILE,))
    lineage = {"root": {"base_model": f"{HOSTILE}2"}, "base_adapter": HOSTILE}
    assert "<img" not in render_lineage(model, lineage, [model])
