"""A random BERT with a WordPiece vocabulary of given texts, for benchmarks of classification."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal

import torch
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors, trainers
from transformers import BertConfig, BertForSequenceClassification, PreTrainedTokenizerFast

_SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]

Size = Literal["small", "base"]
_SIZES: Mapping[Size, Mapping[str, int]] = {
    "small": {
        "hidden_size": 256,
        "num_hidden_layers": 4,
        "num_attention_heads": 4,
        "intermediate_size": 1024,
    },
    "base": {  # of BERT-base
        "hidden_size": 768,
        "num_hidden_layers": 12,
        "num_attention_heads": 12,
        "intermediate_size": 3072,
    },
}


def build_encoder(
    folder: Path, texts: Sequence[str], labels: Sequence[str], seed: int, size: Size = "small"
) -> None:
    """Write a classifier without dropout: 4 layers, 256 wide; or with the layers of BERT-base."""
    backend = Tokenizer(models.WordPiece(unk_token="[UNK]"))  # noqa: S106 - no password
    backend.normalizer = normalizers.BertNormalizer()
    backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    trainer = trainers.WordPieceTrainer(
        vocab_size=8000, special_tokens=_SPECIAL, show_progress=False
    )
    backend.train_from_iterator(texts, trainer)
    backend.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[("[CLS]", 2), ("[SEP]", 3)],
    )
    PreTrainedTokenizerFast(
        tokenizer_object=backend,
        pad_token="[PAD]",  # noqa: S106 - no password
        unk_token="[UNK]",  # noqa: S106
        cls_token="[CLS]",  # noqa: S106
        sep_token="[SEP]",  # noqa: S106
        mask_token="[MASK]",  # noqa: S106
        model_input_names=["input_ids", "token_type_ids", "attention_mask"],
    ).save_pretrained(folder)
    torch.manual_seed(seed)
    config = BertConfig(
        vocab_size=backend.get_vocab_size(),
        **_SIZES[size],
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
        num_labels=len(labels),
        id2label=dict(enumerate(labels)),
        label2id={name: number for number, name in enumerate(labels)},
    )
    BertForSequenceClassification(config).save_pretrained(folder)
