"""The training of a text classifier on MRPC, compared with transformers' Trainer.

    python -m benchmarks.mrpc --data FOLDER --seeds 0 1 2

FOLDER has the corpus as it is published: msr_paraphrase_train.txt and msr_paraphrase_test.txt. For
each seed, a random BERT (4 layers, 256 wide, no dropout) with a WordPiece vocabulary of the corpus
is trained for 3 epochs on 16 pairs per step; 408 pairs are held out by the seed. The contenders
start from the same weights and take the same steps:

zero      `python -m training` with ZeRO-3, two workers of one thread
ddp       the same with `strategy: ddp`
zero-ray  as zero, with rows streamed by `data_engine: ray`
ddp-ray   as ddp, with rows streamed
trainer   transformers' Trainer, one process of two threads, with the same optimizer

Accuracy and F1 are those of the saved models on the held-out and on the test pairs, computed here
in the same way for all. `loss_difference` is the largest difference of the loss of a step from that
of Trainer. Seconds are those of all steps, without starting. Last line: one JSON object.
"""

import argparse
import json
import os
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from statistics import mean, stdev
from typing import Any

import torch
import yaml
from torchmetrics.functional.classification import binary_f1_score
from transformers import AutoModelForSequenceClassification

from benchmarks.encoder import build_encoder
from benchmarks.machine import describe_machine
from benchmarks.workbench import call_contender
from storage import durable
from training.data.labelled.texts import COLUMN_NAMES, LABELLED_LAYOUT
from training.data.prepare import prepare_data
from training.data.readers import RowFile
from training.data.row_table import RowTable
from training.losses.classification import Classes, LabelEncoder, collate_labelled
from training.spec import load_spec

CONTENDERS = ("zero", "ddp", "zero-ray", "ddp-ray", "trainer")
CLASSES = Classes("single_label_classification", ("0", "1"))
NUM_HELD_OUT = 408
NUM_TRAIN = 4076
_TIMEOUT_S = 3600.0


def main() -> int:
    """Measure and print the figures."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, required=True, help="folder of the corpus")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--contenders", nargs="+", choices=CONTENDERS, default=CONTENDERS)
    parser.add_argument("--epochs", type=int, default=3)
    options = parser.parse_args()
    torch.set_num_threads(2)
    found: dict[str, list[dict[str, Any]]] = {name: [] for name in options.contenders}
    for number, seed in enumerate(options.seeds):
        with tempfile.TemporaryDirectory(prefix="benchmark-mrpc-") as folder:
            bench = _prepare(Path(folder), options.data.resolve(), seed, options.epochs)
            order = options.contenders if number % 2 == 0 else options.contenders[::-1]
            for name in order:
                report = _run(bench, name)
                shown = {key: value for key, value in report.items() if key != "losses"}
                print(json.dumps({"seed": seed, "contender": name, **shown}), file=sys.stderr)
                found[name].append({"seed": seed, **report})
    _compare_losses(found)
    result = {
        **{name: _summarise(reports) for name, reports in found.items()},
        "runs": found,
        **describe_machine(),
    }
    print(json.dumps(result))
    return 0


def _prepare(folder: Path, data: Path, seed: int, epochs: int) -> Path:
    """Write the model and the spec into a folder, and prepare the rows."""
    train = data / "msr_paraphrase_train.txt"
    _build_model(folder / "model", train, seed)
    spec = {
        "base_model": "model",
        "task": "sequence_classification",
        "train_file": str(train),
        "validation_fraction": NUM_HELD_OUT / NUM_TRAIN,
        "epochs": epochs,
        "micro_batch_size": 8,
        "micro_batch_tokens": 8192,
        "num_workers": 2,
        "learning_rate": 2e-5,
        "lr_schedule": "constant",
        "warmup_steps": 100,
        "precision": "fp32",
        "accelerator": "cpu",
        "keep_checkpoints": 1,
        "seed": seed,
    }
    for strategy in ("zero", "ddp"):
        for suffix, engine in (("", "local"), ("-ray", "ray")):
            own = {**spec, "strategy": strategy, "data_engine": engine}
            (folder / f"{strategy}{suffix}.yaml").write_text(yaml.safe_dump(own))
    (folder / "test.yaml").write_text(
        yaml.safe_dump({**spec, "train_file": str(data / "msr_paraphrase_test.txt")})
    )
    prepare_data(load_spec(folder / "zero.yaml"), folder / "cache")
    return folder


def _build_model(folder: Path, train: Path, seed: int) -> None:
    rows = [record for _, record in RowFile(train, COLUMN_NAMES).read()]
    texts = [row[name] for row in rows for name in ("#1 String", "#2 String")]
    build_encoder(folder, texts, CLASSES.names, seed)


def _run(bench: Path, name: str) -> dict[str, Any]:
    """Train with one contender and evaluate its model."""
    if name == "trainer":
        command = ["-m", "benchmarks.train_peers.classifier", str(bench)]
        environment = {**os.environ, "OMP_NUM_THREADS": "2"}
        report = call_contender(name, command, environment, bench / "trainer.log", _TIMEOUT_S)
        model = bench / "trainer"
    else:
        _train_ours(bench, name)
        steps = durable.read_json_lines(bench / name / "metrics.jsonl")
        losses = [step["loss"] for step in steps]
        report = {"losses": losses, "took_s": steps[-1]["elapsed_s"]}
        model = bench / name / "model"
    cache = bench / "cache"
    prepared = prepare_data(load_spec(bench / "zero.yaml"), cache)
    assert prepared.validation is not None
    test = prepare_data(load_spec(bench / "test.yaml"), cache)
    assert test.validation is not None
    return {
        **report,
        "held_out": _evaluate(model, [prepared.validation]),
        "test": _evaluate(model, [test.train, test.validation]),
    }


def _train_ours(bench: Path, name: str) -> None:
    spec = bench / f"{name}.yaml"
    command = [
        *("-c", "import sys; from training.__main__ import main; code = main(sys.argv[1:]);"),
    ]
    command[1] += "print('{\"code\": %d}' % code)"
    arguments = [str(spec), "--output", str(bench / name), "--cache", str(bench / "cache")]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    log = bench / f"{name}.log"
    report = call_contender(name, [*command, *arguments], environment, log, _TIMEOUT_S)
    assert report["code"] == 0, log.read_text()[-2000:]


@torch.no_grad()
def _evaluate(model_folder: Path, tables: Sequence[Path]) -> dict[str, float]:
    """Return accuracy and F1 of a saved model on the rows of tables."""
    model: Any = AutoModelForSequenceClassification.from_pretrained(model_folder).eval()
    encoder = LabelEncoder(CLASSES)
    predictions, labels = [], []
    for table in tables:
        rows = RowTable(table, LABELLED_LAYOUT)
        for start in range(0, len(rows), 32):
            read = rows.read(range(start, min(len(rows), start + 32)))
            batch = collate_labelled(read, encoder.encode([row.labels for row in read]), 0)
            predictions.append(model(**batch.inputs).logits.argmax(-1))
            labels.append(batch.labels)
    predicted, expected = torch.cat(predictions), torch.cat(labels)
    return {
        "num_rows": len(expected),
        "accuracy": float((predicted == expected).float().mean()),
        "f1": float(binary_f1_score(predicted, expected)),
    }


def _compare_losses(found: dict[str, list[dict[str, Any]]]) -> None:
    """Replace the losses of each run by their largest difference from Trainer's."""
    expected = [report.pop("losses") for report in found.get("trainer", [])]
    for name, reports in found.items():
        for place, report in enumerate(reports):
            losses = report.pop("losses", None)
            if losses is not None and expected and name != "trainer":
                pairs = list(zip(losses, expected[place], strict=True))
                report["loss_difference"] = max(abs(own - other) for own, other in pairs)


def _summarise(reports: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return mean and standard deviation over the seeds."""
    summary: dict[str, Any] = {"took_s": round(mean(one["took_s"] for one in reports), 1)}
    for rows in ("held_out", "test"):
        for metric in ("accuracy", "f1"):
            values = [one[rows][metric] for one in reports]
            spread = stdev(values) if len(values) > 1 else 0.0
            summary[f"{rows}_{metric}"] = [round(mean(values), 4), round(spread, 4)]
    differences = [one["loss_difference"] for one in reports if "loss_difference" in one]
    return {**summary, **({"loss_difference": max(differences)} if differences else {})}


if __name__ == "__main__":
    sys.exit(main())
