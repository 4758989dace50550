"""Scoring of a given text: the log-probability of each of its tokens."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from transformers import PreTrainedModel

from serving.engine.continuous_batching import find_likelihoods
from serving.engine.messages import Likelihood
from serving.transformers_internals import find_attention

MAX_LOGITS = 1 << 26
"""Most logits per forward pass: 256 MB in fp32."""


def score_tokens(
    model: PreTrainedModel, token_ids: Sequence[int], num_top: int
) -> Iterator[list[Likelihood]]:
    """Yield batches of the likelihoods of `token_ids[1:]`, each token given those before it.

    Runs one forward pass, or several with a cache where one would have too many logits.
    """
    vocab_size = int(model.config.get_text_config().vocab_size)
    step = max(1, MAX_LOGITS // vocab_size)
    ids = torch.tensor([list(token_ids)], device=model.device)  # [1, T]
    past: Any = None
    # The last token is included although its logits are unused: in bf16 a pass over one token less
    # rounds differently.
    for start in range(0, len(token_ids), step):
        end = min(start + step, len(token_ids))
        with torch.no_grad(), _without_pages(model):
            output: Any = model(
                ids[:, start:end], past_key_values=past, use_cache=end < len(token_ids)
            )
        past = output.past_key_values
        tokens = ids[0, start + 1 : end + 1]
        if len(tokens):
            yield find_likelihoods(output.logits[0, : len(tokens)], tokens, num_top)


@contextmanager
def _without_pages(model: PreTrainedModel) -> Iterator[None]:
    """Make a model usable without the paged cache that it generates with."""
    own = find_attention(model)
    if own != "paged|eager":  # other implementations work without a paged cache
        yield
        return
    model.set_attn_implementation("eager")
    try:
        yield
    finally:
        model.set_attn_implementation(own)
