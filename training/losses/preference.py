"""Micro batches of preference rows, and the losses DPO, IPO, ORPO and KTO.

`B` is the number of rows, `L` the length of the longest side. A batch has 2B sequences: the first
side of all rows, then the second side of all rows. Of a pair, these are the good and the bad
answer. For KTO the first side is an answer with a verdict, the second its prompt with an answer to
another prompt. `log p(y|x)` is the sum of the log-probabilities of the tokens of an answer.

Each loss is that of TRL 1.16 on the same micro batch, summed over the rows instead of averaged.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812 - the conventional name
from torchmetrics import MeanMetric

from training.data.preference.pair_layout import PairRow
from training.losses.next_token import (
    IGNORED_LABEL,
    collate_tokens,
    compute_selected_logits,
    find_learned,
)
from training.settings.preference_settings import PreferenceSettings
from training.task import BatchResult, MicroBatch

_NO_TOKENS = np.zeros(1, np.int32), np.zeros(1, np.bool_)
_NO_ROW = PairRow(_NO_TOKENS, _NO_TOKENS, None)


@dataclass(frozen=True)
class PreferenceBatch(MicroBatch):
    """A micro batch of preference rows; `labels` as in `training.losses.next_token`, `[2B, L]`.

    `is_answer` marks the labels that belong to an answer, `[2B, L]`: others are only for ORPO,
    which learns prompts too. `references` are the reference log-probabilities of both sides,
    `[B, 2]`, fp32. `verdicts` are 1 for a good answer and 0 for a bad one, `[B]`; all 1 for pairs.
    `weights` are 1, or 0 for a row that only fills an empty batch, `[B]`.
    """

    is_answer: torch.Tensor
    references: torch.Tensor
    verdicts: torch.Tensor
    weights: torch.Tensor

    def to(self, device: torch.device) -> "PreferenceBatch":
        """Copy the tensors to a device."""
        return PreferenceBatch(
            {name: tensor.to(device) for name, tensor in self.inputs.items()},
            self.labels.to(device),
            self.is_answer.to(device),
            self.references.to(device),
            self.verdicts.to(device),
            self.weights.to(device),
        )


def collate_pairs(rows: Sequence[PairRow], *, learns_prompts: bool) -> PreferenceBatch:
    """Build one micro batch; without rows, it has one that adds nothing to the loss.

    `learns_prompts`: the labels of first sides include their prompts.
    """
    filled = list(rows) or [_NO_ROW]
    sides = [row.first for row in filled] + [row.second for row in filled]
    answers = collate_tokens(sides, "padded")
    labels = answers.labels
    if learns_prompts and rows:
        whole = [(ids, np.ones(len(ids), np.bool_)) for ids, _ in sides[: len(filled)]]
        labels = collate_tokens([*whole, *sides[len(filled) :]], "padded").labels
    return PreferenceBatch(
        answers.inputs,
        labels,
        answers.labels != IGNORED_LABEL,
        torch.tensor([row.references for row in filled], dtype=torch.float32),
        torch.tensor([float(row.verdict is not False) for row in filled]),
        torch.full((len(filled),), 1.0 if rows else 0.0),
    )


def compute_token_logps(model: Any, batch: PreferenceBatch) -> torch.Tensor:
    """Return the log-probabilities of all labels in fp32, `[2B, L]`; zero where there is none."""
    chosen = find_learned(batch.labels)
    logits = compute_selected_logits(model, batch, chosen).float()
    losses = F.cross_entropy(
        logits, batch.labels[chosen], ignore_index=IGNORED_LABEL, reduction="none"
    )
    found = logits.new_zeros(batch.labels.shape)
    return found.masked_scatter(chosen, -losses)


def sum_answers(token_logps: torch.Tensor, batch: PreferenceBatch) -> torch.Tensor:
    """Return `log p(y|x)` of both sides of each row, `[B, 2]`, from `[2B, L]`."""
    sums = (token_logps * batch.is_answer).sum(-1)
    return sums.view(2, -1).T


def compute_preference(
    model: Any, batch: PreferenceBatch, settings: PreferenceSettings
) -> BatchResult:
    """Compute the summed loss of a batch.

    The predictions are the rewards of both sides, without the factor beta, and the verdict of each
    row, `[B, 3]`: `log p(y|x) - log p_ref(y|x)`; for ORPO, the mean log-probability per token.
    """
    token_logps = compute_token_logps(model, batch)
    logps = sum_answers(token_logps, batch)
    lengths = batch.is_answer.sum(-1).view(2, -1).T.clamp(min=1)  # [B, 2]
    if settings.loss == "orpo":
        rewards = logps / lengths
        losses = compute_orpo(rewards, token_logps, batch, settings.beta)
    else:
        rewards = logps - batch.references
        if settings.loss == "dpo":
            losses = compute_dpo(rewards, settings.beta)
        elif settings.loss == "ipo":
            losses = compute_ipo(rewards, lengths, settings.beta)
        else:
            losses = compute_kto(rewards, batch.verdicts, settings)
    loss_sum = (losses * batch.weights).sum()
    return BatchResult(loss_sum, torch.cat([rewards.detach(), batch.verdicts[:, None]], 1))


def compute_dpo(log_ratios: torch.Tensor, beta: float) -> torch.Tensor:
    """Return the losses of pairs, `[B]`, from log-ratios `[B, 2]`.

    `-log sigmoid(beta (r_w - r_l))` with `r = log p(y|x) - log p_ref(y|x)`: Rafailov et al. 2023,
    arXiv 2305.18290, equation 7.
    """
    return -F.logsigmoid(beta * (log_ratios[:, 0] - log_ratios[:, 1]))


def compute_ipo(log_ratios: torch.Tensor, lengths: torch.Tensor, beta: float) -> torch.Tensor:
    """Return the losses of pairs, `[B]`, from log-ratios and lengths of answers, both `[B, 2]`.

    `(r_w - r_l - 1 / (2 beta))²`: Azar et al. 2023, arXiv 2310.12036, equation 17. As in TRL, `r`
    is averaged over the tokens of the answer, because the difference of sums grows with the length
    and the target does not.
    """
    means = log_ratios / lengths
    return (means[:, 0] - means[:, 1] - 1 / (2 * beta)) ** 2


def compute_orpo(
    mean_logps: torch.Tensor, token_logps: torch.Tensor, batch: PreferenceBatch, beta: float
) -> torch.Tensor:
    """Return the losses of pairs, `[B]`, from the mean log-probability per token, `[B, 2]`.

    `NLL - beta log sigmoid(log odds_w - log odds_l)` with `odds = p / (1 - p)`: Hong et al. 2024,
    arXiv 2403.07691, equations 4, 6 and 7. As in TRL, the NLL is the mean over all tokens of the
    prompts and good answers of the micro batch, so a row's share in it grows with its length.
    """
    log_odds = mean_logps - _log1mexp(mean_logps)
    ratio = F.logsigmoid(log_odds[:, 0] - log_odds[:, 1])
    num_rows = len(mean_logps)
    num_tokens = (batch.labels[:num_rows] != IGNORED_LABEL).sum().clamp(min=1)
    return -token_logps[:num_rows].sum() / num_tokens - beta * ratio


def compute_kto(
    log_ratios: torch.Tensor, verdicts: torch.Tensor, settings: PreferenceSettings
) -> torch.Tensor:
    """Return the losses of answers with verdicts, `[B]`, from log-ratios `[B, 2]`.

    `w (1 - sigmoid(±beta (r - z)))`, with the sign and the weight `w` by the verdict: Ethayarajh et
    al. 2024, arXiv 2402.01306, equations 7 and 8. The baseline `z`, an estimate of the KL
    divergence from the reference, is the mean log-ratio of mismatched answers over the micro
    batch, at least 0; it has no gradient. Micro batches do not depend on the number of workers.
    """
    baseline = log_ratios[:, 1].detach().mean().clamp(min=0)
    signs = 2 * verdicts - 1
    weights = torch.where(verdicts.bool(), settings.desirable_weight, settings.undesirable_weight)
    gains = torch.sigmoid(signs * settings.beta * (log_ratios[:, 0] - baseline))
    return weights * (1 - gains)


def _log1mexp(values: torch.Tensor) -> torch.Tensor:
    """Return `log(1 - exp(x))` for `x` below 0, with the branches of Mächler 2012, equation 7."""
    values = values.clamp(max=-torch.finfo(values.dtype).eps)
    return torch.where(
        values > -math.log(2),
        torch.log(-torch.expm1(values)),
        torch.log1p(-torch.exp(values)),
    )


class PreferenceMetrics:
    """The metrics of an evaluation, synchronised over workers by torchmetrics.

    Of pairs: `reward_accuracy`, the share in which the good answer has the higher reward, where a
    tie, as before the first step, counts half;
    `reward_margin`, the mean difference of rewards; `kl`, the mean of `log p_ref - log p` over
    both answers, which estimates the divergence of the reference from the model, in nats per
    answer, if the reference generated the answers. ORPO has no reference, so no `kl`.

    Of KTO: the share of rows whose reward is above or below the baseline of their micro batch as
    their verdict says; the mean reward of good answers less that of bad ones; the mean baseline.
    """

    def __init__(self, settings: PreferenceSettings, device: torch.device) -> None:
        self._settings = settings
        names = ["reward_accuracy", "good", "bad", *([] if settings.loss == "orpo" else ["kl"])]
        self._means = {name: MeanMetric().to(device) for name in names}

    def add(self, predictions: torch.Tensor, labels: torch.Tensor) -> None:  # noqa: ARG002
        """Add rows: the rewards of both sides and the verdict."""
        first, second, verdicts = predictions.T
        if self._settings.loss == "kto":
            baseline = second.mean().clamp(min=0)
            gains = (2 * verdicts - 1) * (first - baseline)
            self._means["kl"].update(baseline, len(first))
            self._means["good"].update(first, verdicts)
            self._means["bad"].update(first, 1 - verdicts)
        else:
            gains = first - second
            self._means["good"].update(first)
            self._means["bad"].update(second)
            if "kl" in self._means:
                self._means["kl"].update(-torch.cat([first, second]))
        self._means["reward_accuracy"].update((gains.sign() + 1) / 2)

    def compute(self) -> dict[str, float]:
        """Return the metrics; all workers must call this together."""
        found = {name: float(mean.compute()) for name, mean in self._means.items()}
        margin = self._settings.beta * (found.pop("good") - found.pop("bad"))
        return {**found, "reward_margin": margin}

    def count_predictions(self) -> None:
        """Return None: there are no classes."""
