"""The bar at the bottom of the window: what a fine-tune will take, why it cannot start, Start.

The script `fine_tune.js` shows what depends on what is entered at the moment.
"""

from html import escape

from apps.client.resources import Estimate, EstimatedMemory
from apps.ui import markup
from apps.ui.figures import format_bytes

FEW_STEPS = 50
"""Fewer steps hardly teach a model new facts: a rule of thumb, for a hint only."""
FEW_STEPS_NOTE = "a small file may need more epochs"
FEW_STEPS_REASON = "A model learns little in so few steps."
_TIGHT = 0.9
"""Share of the memory of a machine beyond which the need is marked."""


def render_estimate(estimate: Estimate) -> str:
    """Render an estimate as one line of figures, each with how it was found."""
    parts = [_render_steps(estimate)]
    if estimate.num_steps is not None and estimate.num_steps < FEW_STEPS:
        parts.append(_render_part("Few steps", FEW_STEPS_NOTE, FEW_STEPS_REASON))
    parts += [_render_time(estimate), _render_memory(estimate.memory)]
    parts.append(_render_disk(estimate))
    return f'<p class="ts-estimate">{"".join(parts)}</p>'


def _render_steps(estimate: Estimate) -> str:
    if estimate.num_steps is None:
        text = "steps are known once the data has been counted"
        return _render_part("Steps and tokens", text, "Large files are counted by their check.")
    about = "" if estimate.is_exact else "about "
    tokens = "" if not estimate.num_tokens else f", {_shorten(estimate.num_tokens)} tokens"
    if estimate.is_exact:
        source = "Counted from the rows with these settings."
    else:
        source = "Estimated from the counts of the file's check, as if no row were padded."
    steps = f"{estimate.num_steps:,} step{'' if estimate.num_steps == 1 else 's'}"
    return _render_part("Steps and tokens", f"{about}{steps}{tokens}", source)


def _render_time(estimate: Estimate) -> str:
    if estimate.training_s is None or estimate.tokens_per_s is None:
        source = "No earlier run with this model and these settings was measured."
        return _render_part("Time", "time measured after the first steps", source)
    source = f"As fast as {estimate.measured_by}: {estimate.tokens_per_s:,.0f} tokens per second."
    text = f"about {markup.format_duration(estimate.training_s)} of training"
    return _render_part("Time", text, source)


def _render_memory(memory: EstimatedMemory) -> str:
    if memory.worker_bytes is None:
        return _render_part("Memory", "memory unknown", "The model's size is not known.")
    is_shared = memory.device == "cpu"
    needed = memory.worker_bytes * (memory.num_workers if is_shared else 1)
    workers = f"{memory.num_workers} × " if memory.num_workers > 1 else ""
    text = f"{workers}{format_bytes(memory.worker_bytes)}"
    if memory.total_bytes is not None:
        text += f" of {format_bytes(memory.total_bytes)}"
    text += " GPU memory" if memory.device == "gpu" else " memory"
    source = (
        "Measured in an earlier run."
        if memory.is_measured
        else ("The peak of each worker, from the size of the model and of a micro batch.")
    )
    is_tight = memory.total_bytes is not None and needed > _TIGHT * memory.total_bytes
    return _render_part("Memory", text, source, is_tight=is_tight)


def _render_disk(estimate: Estimate) -> str:
    needed, free = estimate.disk.needed_bytes, estimate.disk.free_bytes
    if needed is None or free is None:
        return ""
    source = f"Checkpoints and the result; {format_bytes(free)} are free."
    text = f"{format_bytes(needed)} of disk"
    return _render_part("Disk", text, source, is_tight=needed > _TIGHT * free)


def _render_part(name: str, text: str, source: str, *, is_tight: bool = False) -> str:
    kind = ' class="ts-tight"' if is_tight else ""
    warning = "More than is likely to be available. " if is_tight else ""
    title = escape(f"{name}: {warning}{source}")
    return f'<span{kind} title="{title}">{escape(text)}</span>'


def _shorten(count: int) -> str:
    if count < 10_000:
        return f"{count:,}"
    for size, unit in ((1e9, " billion"), (1e6, " million"), (1e3, ",000")):
        if count >= size:
            value = count / size
            return f"{value:.0f}{unit}" if unit == ",000" else f"{value:.3g}{unit}"
    return f"{count:,}"
