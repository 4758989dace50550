"""The cluster as HTML: bars of what is used by what, sparklines, loaded models and the queue."""

from collections.abc import Callable, Mapping, Sequence
from html import escape
from urllib.parse import quote

from apps.client.cluster import (
    ClusterNode,
    ClusterState,
    NodeGpu,
    NodeHistory,
    QueuedRun,
    ReservedResource,
    ServedModel,
    SpaceUse,
)
from apps.ui import markup
from apps.ui.figures import format_bytes

PURPOSES = (("serving", "Serving"), ("training", "Training"), ("system", "Ray"))
OTHER, USED, MEMORY = "Other", "Used", "Memory"
_SPARK_WIDTH, _SPARK_HEIGHT = 120, 28


def render_cluster(state: ClusterState, dashboard_url: str | None) -> str:
    """Render the page; the link to Ray's dashboard is only for visitors on its machine."""
    models = "".join(map(_render_model, state.models))
    queue = "".join(map(_render_run, state.queue))
    nodes = "".join(map(render_node, state.nodes))
    reserved = _render_reserved("CPUs", state.cpus)
    if state.gpus.total:
        reserved += _render_reserved("GPUs", state.gpus)
    return (
        '<div class="ts-cluster"><h2>Cluster</h2>'
        f'<section><h3>Reserved</h3><div class="ts-card">{reserved}</div></section>'
        f'<section><h3>Machines</h3><div class="ts-nodes">{nodes}</div></section>'
        f"<section><h3>Loaded models</h3>{_render_models(models)}</section>"
        f"<section><h3>Runs</h3>{_render_queue(queue)}</section>"
        f"{_render_dashboard(dashboard_url)}</div>"
    )


def _render_reserved(name: str, reserved: ReservedResource) -> str:
    parts = {"Serving": reserved.serving, "Training": reserved.training}
    figures = f"{reserved.total - reserved.free:g} of {reserved.total:g} reserved"
    return _render_meter(name, figures, parts, reserved.total, "{:g}".format)


def render_node(node: ClusterNode) -> str:
    """Render one machine."""
    head = '<span class="ts-kind">head</span>' if node.is_head else ""
    meters = [_render_processors(node), _render_space("Memory", node.memory, node.history)]
    meters += [_render_gpu(gpu) for gpu in node.gpus]
    meters.append(_render_disk(node.disk))
    return (
        f'<article class="ts-card" aria-label="{escape(node.name)}">'
        f"<h4>{markup.keep(node.name)}{head}"
        f'<code title="Id in Ray">{escape(node.id)}</code></h4>{"".join(meters)}</article>'
    )


def _render_processors(node: ClusterNode) -> str:
    if node.cpu.share is None:
        return _render_unknown("Processors")
    uses = _name_purposes(node.cpu.uses)
    parts = _add_other(uses, node.cpu.share)
    return _render_meter(
        "Processors",
        f"{node.cpu.share:.0%} of {node.num_cpus:g}",
        parts,
        1.0,
        "{:.0%}".format,
        render_sparkline("Processors", node.history, node.history.cpu),
    )


def _render_space(name: str, space: SpaceUse, history: NodeHistory) -> str:
    if space.used is None or not space.total:
        return _render_unknown(name)
    parts = _add_other(_name_purposes(space.uses), float(space.used))
    spark = render_sparkline(name, history, history.memory)
    return _render_meter(name, _describe_space(space), parts, space.total, format_bytes, spark)


def _render_disk(disk: SpaceUse) -> str:
    if disk.used is None or not disk.total:
        return _render_unknown("Disk")
    models = float((disk.uses or {}).get("models", 0))
    parts = {"Models and checkpoints": models} if models else {}
    parts = _add_other(parts, float(disk.used))
    return _render_meter("Disk", _describe_space(disk), parts, disk.total, format_bytes)


def _render_gpu(gpu: NodeGpu) -> str:
    name = f"GPU {gpu.index}, {gpu.name}"
    space = SpaceUse(used=gpu.memory_used, total=gpu.memory_total)
    figures = f"{gpu.share:.0%} busy, {_describe_space(space)}"
    parts = {MEMORY: float(gpu.memory_used)}
    return _render_meter(name, figures, parts, gpu.memory_total or 1, format_bytes)


def _describe_space(space: SpaceUse) -> str:
    return f"{format_bytes(space.used or 0)} of {format_bytes(space.total or 0)}"


def _name_purposes(uses: Mapping[str, float] | None) -> dict[str, float]:
    return {label: float((uses or {})[name]) for name, label in PURPOSES if name in (uses or {})}


def _add_other(parts: dict[str, float], used: float) -> dict[str, float]:
    """Add what is used by other programs; a purpose never has more than is used in total."""
    rest, limited = used, {}
    for name, value in parts.items():
        limited[name] = min(value, rest)
        rest -= limited[name]
    return {**limited, OTHER if parts else USED: rest}


def _render_meter(
    name: str,
    figures: str,
    parts: Mapping[str, float],
    total: float,
    show: Callable[[float], str],
    spark: str = "",
) -> str:
    """Render a labelled bar; its parts are listed below it with their figures."""
    shown = {label: value for label, value in parts.items() if value > 0}
    bars = "".join(
        f'<i class="ts-use-{_name_class(label)}" style="width:{100 * value / total:.1f}%"></i>'
        for label, value in shown.items()
    )
    legend = "".join(
        f'<li class="ts-use-{_name_class(label)}">{escape(label)} <b>{escape(show(value))}</b></li>'
        for label, value in shown.items()
    )
    has_purposes = not shown.keys() <= {USED, MEMORY}  # else the figures say the same
    uses = f'<ul class="ts-uses" aria-label="{escape(name)} by use">{legend}</ul>'
    return (
        f'<div class="ts-meter"><div class="ts-meter-head"><span>{escape(name)}</span>'
        f"<b>{escape(figures)}</b>{spark}</div>"
        f'<div class="ts-bar" aria-hidden="true">{bars}</div>{uses if has_purposes else ""}</div>'
    )


def _render_unknown(name: str) -> str:
    return (
        f'<div class="ts-meter"><div class="ts-meter-head"><span>{name}</span><b>–</b></div></div>'
    )


def _name_class(label: str) -> str:
    return label.partition(" ")[0].lower()


def render_sparkline(name: str, history: NodeHistory, values: Sequence[float]) -> str:
    """Render the last minutes as a line over time; the figure beside it is the present value."""
    if len(values) != len(history.at) or not values:
        return ""
    begin, span_s = history.at[0], history.at[-1] - history.at[0]
    if span_s <= 0:
        return ""
    points = " ".join(
        f"{_SPARK_WIDTH * (at - begin) / span_s:.1f},"
        f"{_SPARK_HEIGHT * (1 - min(1.0, max(0.0, value))):.1f}"
        for at, value in zip(history.at, values, strict=True)
    )
    span = markup.format_duration(span_s)
    label = f"{name} in the last {span}: {min(values):.0%} to {max(values):.0%}"
    return (
        f'<svg class="ts-spark" viewBox="0 0 {_SPARK_WIDTH} {_SPARK_HEIGHT}" role="img" '
        f'preserveAspectRatio="none" aria-label="{escape(label)}">'
        f'<polyline points="{points}"/></svg>'
    )


def _render_models(rows: str) -> str:
    if not rows:
        return '<p class="ts-empty">No model is in memory.</p>'
    return (
        '<table class="ts-cluster-table"><thead><tr><th scope="col">Model</th>'
        '<th scope="col">Memory</th><th scope="col">Replicas</th>'
        '<th scope="col">Requests</th></tr></thead>'
        f"<tbody>{rows}</tbody></table>"
    )


def _render_model(model: ServedModel) -> str:
    waiting = f", {model.num_waiting} waiting" if model.num_waiting else ""
    link = f'<a href="./models?model={quote(model.id)}" translate="no">{escape(model.id)}</a>'
    return (
        f'<tr><th scope="row">{link}</th>'
        f"<td>{format_bytes(model.memory_bytes)}</td>"
        f"<td>{model.num_replicas} × {markup.keep(model.deployment)}</td>"
        f"<td>{model.num_running} running{waiting}</td></tr>"
    )


def _render_queue(rows: str) -> str:
    if not rows:
        return '<p class="ts-empty">No run is waiting or running.</p>'
    return f'<ol class="ts-queue">{rows}</ol>'


def _render_run(run: QueuedRun) -> str:
    name = run.name or f"Fine-tune of {run.model or 'a model'}"
    reason = f'<span class="ts-muted">{markup.keep_english(run.waiting_for or "")}</span>'
    reason = reason if run.waiting_for else ""
    mark = ' translate="no"' if run.name else ""
    return (
        f'<li><a href="./runs?run={quote(run.id)}"{mark}>{escape(name)}</a>'
        f"{markup.render_badge(run.status)}{reason}"
        f'<span class="ts-muted ts-end">{markup.render_moment(run.created_at)}</span></li>'
    )


def _render_dashboard(url: str | None) -> str:
    if url is None or not url.startswith("http://"):
        return ""
    return (
        f'<p class="ts-muted"><a href="{escape(url)}" target="_blank" rel="noopener noreferrer">'
        "Ray's dashboard</a> has the processes and logs. Only this machine can reach it, and it "
        "may ask for Ray's token.</p>"
    )
