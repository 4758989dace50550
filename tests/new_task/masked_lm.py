"""A task that is not part of the product: predict masked tokens, as BERT's pre-training does."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812 - the conventional name
from pydantic import BaseModel, ConfigDict, Field
from transformers.models.auto.modeling_auto import MODEL_FOR_MASKED_LM_MAPPING_NAMES

from training.base_model import open_tokenizer
from training.batching import BatchLayout
from training.checkpoint.reference_logits import make_prompt
from training.data.readers import KnownFile
from training.data.row_table import RowTable
from training.data.text.token_layout import TOKEN_LAYOUT
from training.spec import TrainingSpec
from training.task import BatchResult, MicroBatch, Task
from training.tasks.causal_lm import TextData

IGNORED = -100


class MaskSettings(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    mask_every: int = Field(4, ge=2, description="One token of so many is masked.")


class MaskedTask:
    settings = MaskSettings
    model_class = "AutoModelForMaskedLM"
    adds_head = False
    generates = False
    learns_tokens = False
    unused_settings = ()
    default_micro_batch_size = None
    column_names = ("text",)

    def list_metrics(self, spec: TrainingSpec) -> Sequence[str]:
        return ("hits",)

    def check_spec(self, spec: TrainingSpec) -> None:
        pass

    def check_config(self, config: Any, name: str) -> None:
        if config.model_type not in MODEL_FOR_MASKED_LM_MAPPING_NAMES:
            raise ValueError(f"{name!r} is not an encoder")

    def save_companions(self, base_model: str, directory: Path) -> None:
        open_tokenizer(base_model).save_pretrained(directory)

    def open_source(self, path: Path, spec: TrainingSpec, known: KnownFile | None) -> None:
        pass

    def open_data(self, spec: TrainingSpec) -> TextData:
        return TextData(spec)

    def open_objective(self, spec: TrainingSpec, summary: Mapping[str, Any]) -> "MaskObjective":
        mask_every = MaskSettings.model_validate(spec.task_settings).mask_every
        mask_id = open_tokenizer(spec.base_model).mask_token_id
        assert mask_id is not None
        return MaskObjective(self, mask_every, int(mask_id))


class MaskObjective:
    task: Task
    layout = TOKEN_LAYOUT
    needs_references = False

    def __init__(self, task: MaskedTask, mask_every: int, mask_id: int) -> None:
        self.task = task
        self._mask_every = mask_every
        self._mask_id = mask_id

    def adapt_config(self, config: Any) -> None:
        pass

    def weigh_targets(self, rows: RowTable, indices: Sequence[int]) -> float:
        lengths = rows.lengths[list(indices)]
        return float(((lengths + self._mask_every - 1) // self._mask_every).sum())

    def collate(self, rows: Sequence[Any], layout: BatchLayout, *, is_training: bool) -> MicroBatch:
        shape = (max(1, len(rows)), max((len(ids) for ids, _ in rows), default=1))
        input_ids, mask = torch.zeros(shape, dtype=torch.int64), torch.zeros(shape).long()
        labels = torch.full(shape, IGNORED)
        for place, (ids, _) in enumerate(rows):
            own = torch.from_numpy(ids.copy()).long()
            labels[place, : len(own) : self._mask_every] = own[:: self._mask_every]
            own[:: self._mask_every] = self._mask_id
            input_ids[place, : len(own)] = own
            mask[place, : len(own)] = 1
        mask[:, 0] = 1
        return MicroBatch({"input_ids": input_ids, "attention_mask": mask}, labels)

    def compute(self, model: Any, batch: MicroBatch) -> BatchResult:
        logits = model(**batch.inputs).logits.float()
        loss = F.cross_entropy(
            logits.flatten(0, 1), batch.labels.flatten(), ignore_index=IGNORED, reduction="sum"
        )
        return BatchResult(loss, logits.argmax(-1))

    def open_metrics(self, device: torch.device) -> "Hits":
        return Hits(device)

    def make_probe_inputs(self, config: Any) -> Mapping[str, torch.Tensor]:
        return make_prompt(config)


class Hits:
    """The share of masked tokens that are predicted."""

    def __init__(self, device: torch.device) -> None:
        self._counts = torch.zeros(2, device=device)

    def add(self, predictions: torch.Tensor, labels: torch.Tensor) -> None:
        chosen = labels != IGNORED
        hits = (predictions == labels)[chosen]
        self._counts += torch.stack([hits.sum(), chosen.sum()])

    def compute(self) -> dict[str, float]:
        torch.distributed.all_reduce(self._counts)
        return {"hits": float(self._counts[0] / self._counts[1])}

    def count_predictions(self) -> None:
        return None


TASK = MaskedTask()
