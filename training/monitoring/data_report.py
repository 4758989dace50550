"""Events that describe the rows of a run, and the rows and keys that are left out."""

from collections.abc import Mapping
from typing import Any

from training.data.faults import describe_ignored, describe_lines
from training.run.folder import RunFolder


def report_data(run: RunFolder, summary: Mapping[str, Any]) -> None:
    """Add events that describe the rows of a run, and the rows and keys that are left out."""
    unit = summary.get("unit", "tokens")
    learned = f"{summary['num_learned_tokens']:,} of them learned"
    run.events.add(
        f"{summary['num_rows']} rows ({summary['format']}), {summary['num_tokens']:,} {unit}, "
        f"{summary.get('description', learned)}",
        data=dict(summary),
    )
    if held_out := summary["validation"]:
        run.events.add(
            f"{held_out['num_rows']} rows to evaluate on, {held_out['num_tokens']:,} {unit}",
            data=dict(held_out),
        )
    if num_split := summary["num_split_rows"]:
        run.events.add(
            f"{num_split} rows became several: the model's chat template rewrites earlier turns, "
            "so each answer is learned after the prompt that serving builds for it",
            data={"num_split_rows": num_split},
        )
    if not summary.get("has_end_token", True):
        run.events.add(
            "The base model names no token that ends an answer, so the fine-tuned model does not "
            "stop by itself: set eos_token in its tokenizer, or eos_token_id in its "
            "generation_config.json",
            level="warn",
        )
    _report_left_out(run, "rows", summary, summary["max_length"])
    if held_out:
        _report_left_out(run, "rows to evaluate on", held_out, summary["max_length"])


def _report_left_out(run: RunFolder, what: str, counts: Mapping[str, Any], max_length: int) -> None:
    if num_truncated := counts["num_truncated_rows"]:
        run.events.add(
            f"{num_truncated} {what} are longer than {max_length} tokens and were truncated",
            level="warn",
            data={"num_truncated_rows": num_truncated},
        )
    if num_dropped := counts["num_dropped_rows"]:
        lines = counts["dropped_lines"]  # empty for a mix of files
        where = f" ({describe_lines(lines, num_dropped)})" if lines else ""
        run.events.add(
            f"{num_dropped} {what} were dropped: they are longer than {max_length} tokens{where}",
            level="warn",
            data={"num_dropped_rows": num_dropped},
        )
    if ignored := counts["ignored_keys"]:
        run.events.add(
            f"Keys of {what} that are not used, with how many rows have them: "
            f"{describe_ignored(ignored)}",
            level="warn",
            data={"ignored_keys": dict(ignored)},
        )
