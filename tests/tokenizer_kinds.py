"""Generated tokenizers of several kinds, and chat templates of several structures."""

import json
from collections.abc import Callable
from typing import Any

from tokenizers import (
    AddedToken,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
    trainers,
)
from transformers import PreTrainedTokenizerFast

SPECIAL = ["<|im_start|>", "<|im_end|>", "<|eot|>", "<s>", "</s>"]
MARKUP = ["<think>", "</think>", "<tool_response>"]

CHATML = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n"
    "{% if m.role == 'assistant' %}{% generation %}{{ m.content }}<|im_end|>{% endgeneration %}"
    "{% else %}{{ m.content }}<|im_end|>{% endif %}\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
LLAMA = (
    "{{ bos_token }}{% for m in messages %}<|im_start|>{{ m.role }}<|im_end|>\n\n"
    "{{ m.content }}<|eot|>{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant<|im_end|>\n\n{% endif %}"
)
STRIPPING = (
    "{% for m in messages %}{{ m.role }}: {{ m.content | trim }}</s>\n{% endfor %}"
    "{% if add_generation_prompt %}assistant:{% endif %}"
)
THINKING = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n"
    "{% if m.role == 'assistant' and '</think>' in m.content %}"
    "<think>{{ m.content.split('</think>')[0].split('<think>')[-1] }}</think>"
    "{{ m.content.split('</think>')[-1] }}{% else %}{{ m.content }}{% endif %}<|im_end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n<think>{% endif %}"
)
TEMPLATES = {"chatml": CHATML, "llama": LLAMA, "stripping": STRIPPING, "thinking": THINKING}

_LINES = [
    "A small model learns from a few lines what words look like.",
    "The quick brown fox jumps over the lazy dog, and the dog sleeps on.",
    "<div>some markup</div> user assistant system: think | im end start | ",
    "Grüße aus Köln, café crème; 你好 世界 0123456789",
] * 3


def _make_byte_level() -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=400,
        show_progress=False,
        special_tokens=SPECIAL,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
    )
    tokenizer.train_from_iterator(_LINES, trainer)
    return tokenizer


def _make_metaspace() -> Tokenizer:
    """Make one like Llama 2's: a space before the whole text only, unknown characters as bytes."""
    tokenizer = Tokenizer(models.BPE(byte_fallback=True, unk_token="<unk>", fuse_unk=True))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first", split=False)
    tokenizer.decoder = decoders.Sequence(
        [
            decoders.Replace("\u2581", " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(" ", 1, 0),
        ]
    )
    all_bytes = [f"<0x{number:02X}>" for number in range(256)]
    alphabet = [*(chr(code) for code in range(33, 127)), "\u2581", "\n"]
    trainer = trainers.BpeTrainer(
        vocab_size=700,
        show_progress=False,
        special_tokens=["<unk>", *SPECIAL, *all_bytes],
        initial_alphabet=alphabet,
    )
    tokenizer.train_from_iterator(_LINES, trainer)
    # The trainer marks the byte tokens as special; they must be ordinary vocabulary entries.
    own = tokenizer.to_str()
    return _keep_added(own, ["<unk>", *SPECIAL])


def _keep_added(own: str, names: list[str]) -> Tokenizer:
    state = json.loads(own)
    state["added_tokens"] = [one for one in state["added_tokens"] if one["content"] in names]
    return Tokenizer.from_str(json.dumps(state))


def _make_legacy() -> Tokenizer:
    """Make one whose normaliser adds a space before every part between control tokens."""
    tokenizer = _make_metaspace()
    tokenizer.normalizer = normalizers.Sequence(
        [normalizers.Prepend("\u2581"), normalizers.Replace(" ", "\u2581")]
    )
    tokenizer.pre_tokenizer = None
    return tokenizer


def _make_unigram() -> Tokenizer:
    """Make one like T5's; the control tokens are vocabulary entries with the highest score."""
    tokenizer = Tokenizer(models.Unigram())
    tokenizer.normalizer = normalizers.NFKC()
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Metaspace()
    trainer = trainers.UnigramTrainer(
        vocab_size=200,
        show_progress=False,
        unk_token="<unk>",
        special_tokens=["<unk>", *SPECIAL],
        initial_alphabet=[chr(code) for code in range(33, 127)],
    )
    tokenizer.train_from_iterator(_LINES, trainer)
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>",
        special_tokens=[(name, tokenizer.token_to_id(name)) for name in ("<s>", "</s>")],
    )
    return tokenizer


def _make_wordpiece() -> Tokenizer:
    """Make one like BERT's, uncased."""
    tokenizer = Tokenizer(models.WordPiece(unk_token="<unk>"))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece()
    trainer = trainers.WordPieceTrainer(
        vocab_size=400,
        show_progress=False,
        special_tokens=["<unk>", *SPECIAL],
        initial_alphabet=[chr(code) for code in range(33, 127)],
    )
    tokenizer.train_from_iterator(_LINES, trainer)
    return tokenizer


KINDS: dict[str, Callable[[], Tokenizer]] = {
    "byte-level": _make_byte_level,
    "metaspace": _make_metaspace,
    "legacy": _make_legacy,
    "unigram": _make_unigram,
    "wordpiece": _make_wordpiece,
}


def make_tokenizer(kind: str, template: str | None = CHATML) -> Any:
    """Make a tokenizer with `SPECIAL` as special and `MARKUP` as other added tokens."""
    tokenizer = KINDS[kind]()
    made = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        bos_token="<s>",
        eos_token="<|im_end|>",
        unk_token=None if kind == "byte-level" else "<unk>",
        additional_special_tokens=SPECIAL[:3],
        clean_up_tokenization_spaces=False,
        chat_template=template,
    )
    made.add_tokens([AddedToken(name, special=False, normalized=False) for name in MARKUP])
    return made
