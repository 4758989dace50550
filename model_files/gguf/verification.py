"""Verification of a converted GGUF file: read back, and run with llama.cpp where it can be."""

from pathlib import Path
from typing import NamedTuple

from model_files.gguf.comparison import (
    GgufComparison,
    compare_with_original,
    explain_no_comparison,
)
from model_files.gguf.conversion import ConvertedModel
from model_files.gguf.gguf_check import GgufFigures, check_gguf


class GgufReport(NamedTuple):
    """The figures of a GGUF file, and how it compares with the original, or why it was not run."""

    quantization: str
    figures: GgufFigures
    comparison: GgufComparison | None
    not_compared: str | None

    def describe(self) -> dict[str, object]:
        """Return the report as JSON."""
        return {
            "quantization": self.quantization,
            **self.figures._asdict(),
            "comparison": self.comparison._asdict() if self.comparison else None,
            "not_compared": self.not_compared,
        }

    def __str__(self) -> str:
        figures, run = self.figures, self.comparison
        text = (
            f"{self.quantization}, {figures.num_tensors} tensors with {figures.num_parameters:,} "
            "finite values"
        )
        if run is None:
            return f"{text}; not run with llama.cpp: {self.not_compared}"
        return (
            f"{text}; logits of llama.cpp and transformers differ by {run.error:.4f} of their size "
            f"(at most {run.tolerance}), the most probable token is the same at "
            f"{run.greedy_share:.0%} of {run.num_tokens} positions"
        )


def verify_gguf(converted: ConvertedModel, directory: Path) -> GgufReport:
    """Compare a GGUF file with its model directory; raise `ValueError` if they do not match."""
    figures = check_gguf(converted.path, directory)
    reason = explain_no_comparison(directory)
    comparison = None
    if reason is None:
        comparison = compare_with_original(converted.path, directory, converted.quantization)
    return GgufReport(converted.quantization, figures, comparison, reason)
