"""The curves of a run as columns of figures, which the script of the page draws.

A tab first gets an evenly spaced part of all steps, then each new step.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple, TypedDict, TypeGuard

from apps.client.client import ApiClient
from apps.client.resources import Metrics
from apps.ui.tab_state import CurveEnd

MAX_FIRST_POINTS = 800
MAX_POINTS = 2400
"""Points of a tab, beyond which it gets an evenly spaced part again."""
MAX_COMPARED_POINTS = 400
_HIDDEN = frozenset(
    {"num_steps", "epoch", "created_at", "remaining_s", "learned_tokens", "tokens"}
    | {"learned_tokens_per_s", "eval_perplexity"}
)
_NUM_DIGITS = 5

Column = list[float | None]


class CurveAddition(TypedDict):
    """Columns of figures to draw; `is_whole`: they replace all that the tab has."""

    is_whole: bool
    num_steps: int
    columns: Mapping[str, Column]


class CurveUpdate(NamedTuple):
    """What a tab needs, None if nothing, and what it has then."""

    addition: CurveAddition | None
    end: CurveEnd


async def read_curves(client: ApiClient, run_id: str, end: CurveEnd) -> CurveUpdate:
    """Request the steps of a run that a tab does not have; raises `ApiClientError`.

    Steps that a resumed run takes again replace all.
    """
    outputs = client.job_outputs
    last_step = _read_step(end)
    if 0 < end.num_points < MAX_POINTS:
        found = await outputs.list_metrics(
            run_id, after_step=max(0, last_step - 1), max_points=MAX_FIRST_POINTS
        )
        if found and found[0].raw == end.last:
            new = found[1:]
            return _describe(new, end.num_points + len(new), is_whole=False) if new else _none(end)
    found = await outputs.list_metrics(run_id, max_points=MAX_FIRST_POINTS)
    return _describe(found, len(found), is_whole=True) if found or end.num_points else _none(end)


def _none(end: CurveEnd) -> CurveUpdate:
    return CurveUpdate(None, end)


def _describe(found: Sequence[Metrics], num_points: int, *, is_whole: bool) -> CurveUpdate:
    last = found[-1] if found else None
    addition: CurveAddition = {
        "is_whole": is_whole,
        "num_steps": last.num_steps if last else 0,
        "columns": select_columns(found),
    }
    return CurveUpdate(addition, CurveEnd(num_points, last.raw if last else {}))


def select_columns(metrics: Sequence[Metrics], names: Iterable[str] = ()) -> dict[str, Column]:
    """Return the figures of steps by column, rounded; of `names` only if there are some.

    A figure that a step does not have, or that is not finite, is None.
    """
    chosen = list(names) or sorted(
        {name for entry in metrics for name, value in entry.raw.items() if is_finite_number(value)}
        - _HIDDEN
    )
    return {
        name: [_round(entry.raw.get(name)) for entry in metrics]
        for name in dict.fromkeys(["step", *chosen])
    }


def is_finite_number(value: object) -> TypeGuard[float]:
    """Return whether a JSON value is a number that can be shown."""
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _round(value: object) -> float | None:
    if not is_finite_number(value):
        return None
    if isinstance(value, int) or value.is_integer():
        return int(value)
    return float(f"{value:.{_NUM_DIGITS}g}")


def _read_step(end: CurveEnd) -> int:
    step = end.last.get("step")
    return int(step) if isinstance(step, int | float) else 0
