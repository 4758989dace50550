"""The duration of the bundled fine-tune, and the accuracy of its model.

    python -m benchmarks.first_light

Runs `python -m training examples/handbook.yaml` as a user would, then scores the base model and the
result on every training question and every held-out paraphrase with greedy decoding. The peer is
the base model. Last line: one JSON object.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.machine import describe_machine

ROOT = Path(__file__).parent.parent
EXAMPLES = ROOT / "examples"


def main() -> int:
    """Measure once and print the figures."""
    argparse.ArgumentParser(description=__doc__).parse_args()
    with tempfile.TemporaryDirectory(prefix="first-light-") as folder:
        output = Path(folder) / "run"
        started = time.monotonic()
        _call("-m", "training", EXAMPLES / "handbook.yaml", "--output", output)
        took_s = time.monotonic() - started
        metrics = [json.loads(line) for line in (output / "metrics.jsonl").open()]
        tuned = _score(output / "model")
    base = _score(EXAMPLES / "tuneserve-demo")
    result = {
        "fine_tune_s": round(took_s, 1),
        "optimizer_steps_s": metrics[-1]["elapsed_s"],
        "tokens_per_s": metrics[-1]["tokens_per_s"],
        "train_exact": tuned["train_exact"],
        "heldout_exact": tuned["heldout_exact"],
        "base_train_exact": base["train_exact"],
        "base_heldout_exact": base["heldout_exact"],
        "num_train": tuned["num_train"],
        "num_heldout": tuned["num_heldout"],
        **describe_machine(),
    }
    print(json.dumps(result))
    return 0


def _score(model: Path) -> dict[str, Any]:
    output = _call(EXAMPLES / "score.py", model)
    score: dict[str, Any] = json.loads(output.strip().splitlines()[-1])
    return score


def _call(*arguments: str | Path) -> str:
    """Run Python with these arguments; returns its stdout. Its stderr goes to the terminal."""
    done = subprocess.run(  # noqa: S603 - our own scripts
        [sys.executable, *arguments], cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True
    )
    return done.stdout


if __name__ == "__main__":
    sys.exit(main())
