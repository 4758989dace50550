"""The lineage of a model as a picture: boxes with connectors, from base and data to the aliases.

The boxes are lists in the order of the steps, so a screen reader reads the same; `models.css` draws
the connectors, from left to right, or from top to bottom where there is little room.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from html import escape
from urllib.parse import quote

from apps.client.model_resources import Model
from apps.ui import markup
from apps.ui.figures import format_metric

MAX_CHILDREN = 12
CHECKPOINT = "Checkpoint"
_MAX_EPOCH = 1e6  # more than any training has; JSON's integers have no limit


@dataclass(frozen=True)
class Box:
    """A box of the picture: what it is, its name, a link, and notes below the name.

    `before` is a box that leads to this one only.
    """

    kind: str
    name: str
    href: str | None = None
    notes: tuple[str, ...] = ()
    is_current: bool = False
    before: "Box | None" = None


def render_lineage(model: Model, lineage: Mapping[str, object], models: Sequence[Model]) -> str:
    """Render the steps that led to a model, and the models that were made from it."""
    steps = list_steps(model, lineage, models)
    items = "".join(_render_step(step) for step in steps)
    return (
        f'<figure class="ts-lineage" role="group" aria-label="Lineage of {escape(model.id)}">'
        f'<ol class="ts-lineage-steps">{items}</ol>{_render_children(model, models)}</figure>'
    )


def list_steps(
    model: Model, lineage: Mapping[str, object], models: Sequence[Model]
) -> list[list[Box]]:
    """Return the boxes of each step: base and data, run, checkpoint, model, aliases."""
    known = {one.id for one in models}
    steps = [
        _list_inputs(model, lineage, known),
        _list_runs(model),
        _list_checkpoints(model, lineage),
        [Box(_name_kind(model), model.id, is_current=True)],
        [Box("Alias", alias, f"./chat?model={quote(alias)}") for alias in model.aliases],
    ]
    return [step for step in steps if step]


def _name_kind(model: Model) -> str:
    return "Adapter" if model.kind == "adapter" else "Base model" if model.base else "Model"


def _find_root(model: Model, lineage: Mapping[str, object], known: set[str]) -> Box | None:
    """Return the model at the beginning of a chain of fine-tunes, unless it is the base itself."""
    root = _read_text(lineage.get("root"), "base_model")
    if root is None or root in (model.tuned_from, model.id):
        return None
    return _link_model("First base model", root, known)


def _list_inputs(model: Model, lineage: Mapping[str, object], known: set[str]) -> list[Box]:
    boxes = []
    if model.tuned_from is not None:
        parent = lineage.get("parent")
        data = _read_text(parent.get("data"), "name") if isinstance(parent, Mapping) else None
        notes = (f"fine-tuned on {data}",) if data else ()
        base = _link_model("Base model", model.tuned_from, known, notes)
        boxes.append(replace(base, before=_find_root(model, lineage, known)))
    if (adapter := _read_text(lineage, "base_adapter")) is not None:
        boxes.append(_link_model("Continued adapter", adapter, known))
    if model.data is not None:
        boxes.append(Box("Data", model.data, notes=_describe_data(lineage.get("data"))))
    return boxes


def _describe_data(data: object) -> tuple[str, ...]:
    if not isinstance(data, Mapping):
        return ()
    counts = ((data.get("num_rows"), "rows"), (data.get("num_tokens"), "tokens"))
    return tuple(f"{count:,} {unit}" for count, unit in counts if isinstance(count, int))


def _list_runs(model: Model) -> list[Box]:
    if model.run_id is None:
        return []
    return [Box("Run", markup.shorten_id(model.run_id), f"./runs?run={quote(model.run_id)}")]


def _list_checkpoints(model: Model, lineage: Mapping[str, object]) -> list[Box]:
    if model.checkpoint_step is None:
        return []
    metrics = lineage.get("metrics")
    epoch = metrics.get("epoch") if isinstance(metrics, Mapping) else None
    notes = (
        [f"epoch {epoch:g}"] if isinstance(epoch, int | float) and abs(epoch) < _MAX_EPOCH else []
    )
    if "loss" in model.metrics:
        notes.append(f"training loss {format_metric(model.metrics['loss'])}")
    href = None if model.run_id is None else f"./runs?run={quote(model.run_id)}"
    return [Box(CHECKPOINT, f"Step {model.checkpoint_step:,}", href, tuple(notes))]


def _link_model(kind: str, name: str, known: set[str], notes: tuple[str, ...] = ()) -> Box:
    if name in known:
        return Box(kind, name, f"./models?model={quote(name)}", notes)
    return Box(kind, name, None, (*notes, "not stored here"))


def _read_text(value: object, key: str) -> str | None:
    text = value.get(key) if isinstance(value, Mapping) else None
    return text if isinstance(text, str) and text else None


def _render_step(boxes: Sequence[Box]) -> str:
    wide = ' class="ts-wide"' if any(box.before is not None for box in boxes) else ""
    items = "".join(f"<li>{_render_chain(box)}</li>" for box in boxes)
    return f"<li{wide}><ul>{items}</ul></li>"


def _render_chain(box: Box) -> str:
    before = "" if box.before is None else _render_box(box.before, "ts-box ts-before")
    return before + _render_box(box, "ts-box ts-current" if box.is_current else "ts-box")


def _render_box(box: Box, style: str) -> str:
    mark = "" if box.kind == CHECKPOINT else ' translate="no"'  # "Step 12" is no name
    name = escape(box.name)
    if box.href is not None:
        name = f'<a href="{escape(box.href)}"{_mark_link(box.href)}{mark}>{name}</a>'
    elif box.is_current:
        name = f'<span aria-current="true"{mark}>{name}</span>'
    else:
        name = f"<span{mark}>{name}</span>"
    notes = "".join(f"<small>{escape(note)}</small>" for note in box.notes)
    return f'<div class="{style}"><b>{escape(box.kind)}</b>{name}{notes}</div>'


def _mark_link(href: str) -> str:
    return " data-open" if href.startswith("./models?") else ""


def _render_children(model: Model, models: Sequence[Model]) -> str:
    children = [one for one in models if one.tuned_from == model.id]
    if not children:
        return ""
    links = ", ".join(
        f'<a href="./models?model={quote(one.id)}" data-open translate="no">{escape(one.id)}</a>'
        for one in children[:MAX_CHILDREN]
    )
    num_more = len(children) - MAX_CHILDREN
    more = f" and {num_more:,} more" if num_more > 0 else ""
    return f'<figcaption class="ts-muted">Made from it: {links}{more}</figcaption>'
