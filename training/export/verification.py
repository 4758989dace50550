"""The verification of a consolidated model before it may be used, and its report."""

import shutil
from pathlib import Path
from typing import Any

import torch
from pydantic import BaseModel, ConfigDict, Field

from storage import durable
from training.checkpoint.reference_logits import Probe
from training.export.plan import ConsolidationError
from training.model import cast_inputs, find_weight_faults
from training.run.folder import REJECTED_SUFFIX

REPORT_NAME = "verification.json"
_MAX_NAMES = 10

# Largest difference of the logits, as a share of their norm. The same weights in the same dtype
# give nearly the same logits; another kernel or a GPU sums and rounds in another order.
_TOLERANCES = {torch.float32: 1e-4, torch.float16: 1e-2, torch.bfloat16: 5e-2}
# Where the weights themselves were rounded to another dtype, every layer adds to the difference;
# other weights than those trained differ by about 1.
_ROUNDED_TOLERANCES = {torch.float32: 5e-2, torch.float16: 5e-2, torch.bfloat16: 2e-1}


class RejectedError(ConsolidationError):
    """The consolidated model failed its verification; it is kept as `.rejected`, with a report."""


class Check(BaseModel):
    """The result of one check."""

    model_config = ConfigDict(frozen=True)

    name: str
    passed: bool | None = Field(description="None: it could not be looked at.")
    detail: str


class Verification(BaseModel):
    """The results of all checks of one model."""

    model_config = ConfigDict(frozen=True)

    checks: tuple[Check, ...]

    @property
    def passed(self) -> bool:
        """Whether no check failed."""
        return all(check.passed is not False for check in self.checks)

    def describe_faults(self) -> str:
        """Describe the failed checks in one line."""
        return "; ".join(check.detail for check in self.checks if check.passed is False)

    def write(self, directory: Path) -> None:
        """Write the report into the model's directory."""
        durable.write_json(
            directory / REPORT_NAME, {"passed": self.passed, **self.model_dump(mode="json")}
        )


def check_values(non_finite: list[str], unexpected_zeros: list[str], num_tensors: int) -> Check:
    """Check the statistics of the values, which were collected while they were written."""
    faults = []
    if non_finite:
        faults.append(f"values that are not finite in {_list(non_finite)}")
    if unexpected_zeros:
        faults.append(
            f"nothing but zeros in {_list(unexpected_zeros)}, which had other values before"
        )
    detail = "; ".join(faults) or f"all values of {num_tensors} tensors are finite"
    return Check(name="values", passed=not faults, detail=detail)


def check_model(
    directory: Path,
    probe: Probe | None,
    trained_in: torch.dtype | None,
    model_class: str = "AutoModelForCausalLM",
    reference: str = "those in training",
) -> list[Check]:
    """Load a model directory with transformers, and compare its logits with those of `probe`.

    Its weights count as rounded unless they have the dtype `trained_in`; None: they are in any
    case. `model_class` is the class of transformers that loads it, `reference` says what has the
    logits of `probe`.
    """
    import transformers

    model: Any
    try:
        model, info = getattr(transformers, model_class).from_pretrained(
            directory,
            output_loading_info=True,
            local_files_only=True,
            use_safetensors=True,
            trust_remote_code=False,
            dtype="auto",
        )
    except Exception as exc:  # noqa: BLE001 - every error belongs in the report
        reason = str(exc).replace(str(directory), directory.name)
        return [Check(name="loads", passed=False, detail=f"it does not load: {reason}")]
    faults = find_weight_faults(info)
    detail = f"it does not load as a whole: {faults}" if faults else "every key is there, no other"
    loads = Check(name="loads", passed=not faults, detail=detail)
    if faults:
        return [loads]
    is_rounded = model.dtype != trained_in
    return [loads, check_logits(model.eval(), probe, is_rounded=is_rounded, reference=reference)]


def check_logits(
    model: Any, probe: Probe | None, *, is_rounded: bool, reference: str = "those in training"
) -> Check:
    """Compare the logits of a model with those of `probe`, which `reference` names.

    `is_rounded` tells whether its weights were rounded to another dtype since.
    """
    if probe is None:
        detail = "the checkpoint has no logits of these weights to compare with"
        return Check(name="logits", passed=None, detail=detail)
    with torch.no_grad():
        found = model(**cast_inputs(probe.inputs, model.dtype)).logits.float()
    if found.dim() > probe.logits.dim():
        found = found[0]
    if found.shape != probe.logits.shape:
        detail = f"logits {tuple(found.shape)}, {reference} are {tuple(probe.logits.shape)}"
        return Check(name="logits", passed=False, detail=detail)
    difference = float((found - probe.logits).norm() / probe.logits.norm())
    tolerances = _ROUNDED_TOLERANCES if is_rounded else _TOLERANCES
    allowed = tolerances[model.dtype]
    detail = f"logits differ from {reference} by {difference:.2g} of their norm"
    is_close = difference <= allowed  # false for NaN too
    return Check(name="logits", passed=is_close, detail=f"{detail}, {allowed:g} allowed")


def _list(names: list[str]) -> str:
    shown = ", ".join(names[:_MAX_NAMES])
    return shown if len(names) <= _MAX_NAMES else f"{shown} and {len(names) - _MAX_NAMES} more"


def reject_model(building: Path, output: Path, verification: Verification) -> RejectedError:
    """Move a model that failed beside `output`, and replace a previously rejected one."""
    aside = move_aside(building, output)
    return RejectedError(
        f"the consolidated model is not what was trained: {verification.describe_faults()}. It was "
        f"moved to {aside.name!r}, with {REPORT_NAME}"
    )


def move_aside(building: Path, output: Path) -> Path:
    """Move a model that failed beside `output`, in place of an earlier one; return its folder."""
    aside = output.with_name(f"{output.name}{REJECTED_SUFFIX}")
    shutil.rmtree(aside, ignore_errors=True)
    building.rename(aside)
    return aside
