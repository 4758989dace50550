"""`tuneserve cluster`: the machines, what uses them, the loaded models and the queue."""

from apps.cli.connection import DEFAULT_URL, AsJson, Url, run_with_api
from apps.cli.output import Rows, show
from apps.client.cluster import ClusterNode, ClusterState, ReservedResource, SpaceUse

_GIGABYTE = 1e9
_UNKNOWN = "unknown"


def cluster(url: Url = DEFAULT_URL, as_json: AsJson = False) -> None:
    """Show the machines, what uses them, the loaded models and the queue."""
    state = run_with_api(url, lambda api: api.cluster.get())
    show(state.raw, as_json, lambda: _render(state))


def _render(state: ClusterState) -> Rows:
    cells = [("reserved CPUs", _describe_reserved(state.cpus))]
    if state.gpus.total:
        cells.append(("reserved GPUs", _describe_reserved(state.gpus)))
    cells += [(_name(node), _describe_node(node)) for node in state.nodes]
    for model in state.models:
        size = f"{model.memory_bytes / _GIGABYTE:.2f} GB"
        requests = f"{model.num_running} requests running, {model.num_waiting} waiting"
        cells.append((f"model {model.id}", f"{model.deployment}, {size}, {requests}"))
    for run in state.queue:
        reason = f": {run.waiting_for}" if run.waiting_for else ""
        cells.append((f"run {run.id}", f"{run.status}{reason}"))
    return Rows(cells)


def _describe_reserved(reserved: ReservedResource) -> str:
    return (
        f"{reserved.training:g} training, {reserved.serving:g} serving, {reserved.free:g} of "
        f"{reserved.total:g} free"
    )


def _name(node: ClusterNode) -> str:
    return f"{node.name} (head)" if node.is_head else node.name


def _describe_node(node: ClusterNode) -> str:
    share = _UNKNOWN if node.cpu.share is None else f"{node.cpu.share:.0%}"
    parts = [f"processors {share}", f"memory {_describe_space(node.memory)}"]
    parts.append(f"disk {_describe_space(node.disk)}")
    parts += [f"GPU {gpu.index} {gpu.share:.0%}" for gpu in node.gpus]
    return ", ".join(parts)


def _describe_space(space: SpaceUse) -> str:
    if space.used is None or not space.total:
        return _UNKNOWN
    return f"{space.used / _GIGABYTE:.1f} of {space.total / _GIGABYTE:.1f} GB"
