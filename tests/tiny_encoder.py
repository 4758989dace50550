"""A tiny BERT with a WordPiece vocabulary of its own, for tests of classification."""

from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors
from transformers import (
    BertConfig,
    BertForMaskedLM,
    BertForSequenceClassification,
    PreTrainedTokenizerFast,
)

WORDS = ("good", "bad", "film", "book", "the", "was", "and", "very", "not", "really", "it", "plain")
_SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]


def build_tiny_encoder(folder: Path, *, num_labels: int | None = None, **config: Any) -> Path:
    """Write a random BERT without dropout: with a language model's head, or a classifier's."""
    tokens = [*_SPECIAL, *WORDS, *(f"##{letter}" for letter in "abcdefghijklmnopqrstuvwxyz")]
    tokens += list("abcdefghijklmnopqrstuvwxyz")
    backend = Tokenizer(
        models.WordPiece({token: place for place, token in enumerate(tokens)}, unk_token="[UNK]")
    )
    backend.normalizer = normalizers.BertNormalizer()
    backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    backend.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[("[CLS]", 2), ("[SEP]", 3)],
    )
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=backend,
        pad_token="[PAD]",
        unk_token="[UNK]",
        cls_token="[CLS]",
        sep_token="[SEP]",
        mask_token="[MASK]",
        model_input_names=["input_ids", "token_type_ids", "attention_mask"],
    )
    sizes = {
        "vocab_size": len(tokens),
        "hidden_size": 32,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "intermediate_size": 64,
        "max_position_embeddings": 64,
        "initializer_range": 0.2,  # so large that a few steps are enough to learn
        "hidden_dropout_prob": 0.0,
        "attention_probs_dropout_prob": 0.0,
        **config,
    }
    torch.manual_seed(0)
    if num_labels is None:
        model: Any = BertForMaskedLM(BertConfig(**sizes))
    else:
        model = BertForSequenceClassification(BertConfig(**sizes, num_labels=num_labels))
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder
