"""The check of a job whose result is to be an adapter: that it will be served."""

from pathlib import Path
from typing import TYPE_CHECKING

from apps.errors import InvalidInputError
from model_files.json_files import read_object
from model_files.weight_headers import TensorHeader, read_weight_headers
from serving.store.adapter_validation import OUTER_LAYERS, arrange_layers, check_layers
from training.settings.task_settings import DEFAULT_TASK, PREFERENCE_TASK
from training.spec import TrainingSpec

if TYPE_CHECKING:
    from training.preflight.adapter_check import PlannedAdapter


def check_adapter_job(spec: TrainingSpec) -> None:
    """Raise `InvalidInputError` for settings with which a job's adapter would not be served."""
    if spec.adapter is None or spec.adapter.export != "adapter":
        return
    if spec.task not in (DEFAULT_TASK, PREFERENCE_TASK):
        raise _refuse(
            f"training.task is {spec.task!r}, and adapters are served for language models only, "
            f"expected {DEFAULT_TASK!r} or {PREFERENCE_TASK!r}"
        )
    if spec.adapter.modules_to_save:
        names = ", ".join(map(repr, spec.adapter.modules_to_save))
        raise _refuse(
            f"adapter.modules_to_save has {names}, and an adapter with modules of its own is not "
            "served; leave it empty"
        )
    targets = spec.adapter.target_modules
    for name in targets if not isinstance(targets, str) else ():
        if name.rpartition(".")[2] in OUTER_LAYERS:
            raise _refuse(
                f"adapter.target_modules has {name!r}, and adapters of the head or an embedding "
                "are not served; remove it"
            )


def check_adapter_layers(spec: TrainingSpec, planned: "PlannedAdapter | None") -> None:
    """Raise `InvalidInputError` for a job whose adapter the store would not accept for its base.

    `planned` is the adapter of the spec.
    """
    if spec.adapter is None or planned is None or spec.adapter.export != "adapter":
        return
    base = Path(spec.base_model)
    headers = {name: TensorHeader("F32", shape) for name, shape in planned.shapes.items()}
    try:
        layers = arrange_layers(headers, "the adapter")
        settings = {
            "r": spec.adapter.rank,
            "fan_in_fan_out": planned.fan_in_fan_out,
            "use_dora": spec.adapter.method == "dora",
        }
        vocab_size = read_object(base / "config.json").get("vocab_size")
        check_layers(layers, settings, base.name, read_weight_headers(base), vocab_size)
    except ValueError as exc:
        targets = spec.adapter.target_modules
        shown = repr(targets if isinstance(targets, str) else list(targets))
        raise _refuse(f"adapter.target_modules is {shown}, and {exc}") from exc


def _refuse(reason: str) -> InvalidInputError:
    return InvalidInputError(
        f"adapter.export is 'adapter', and {reason}; or set adapter.export to 'merged', which "
        "publishes a complete model",
        param="training",
    )
