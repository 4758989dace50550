"""The tokenizer and the chat template of the demonstration model."""

from collections.abc import Iterable

from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

IM_START, IM_END = "<|im_start|>", "<|im_end|>"
END_OF_TEXT, PAD = "<|endoftext|>", "<|pad|>"
SPECIAL_TOKENS = [PAD, END_OF_TEXT, IM_START, IM_END]

CHAT_TEMPLATE = (
    "{%- for message in messages -%}\n"
    "{{- '<|im_start|>' + message['role'] + '\\n' -}}\n"
    "{%- if message['role'] == 'assistant' -%}\n"
    "{%- generation -%}{{- message['content'] + '<|im_end|>' -}}{%- endgeneration -%}\n"
    "{%- else -%}\n"
    "{{- message['content'] + '<|im_end|>' -}}\n"
    "{%- endif -%}\n"
    "{{- '\\n' -}}\n"
    "{%- endfor -%}\n"
    "{%- if add_generation_prompt -%}\n"
    "{{- '<|im_start|>assistant\\n' -}}\n"
    "{%- endif -%}\n"
)
"""ChatML; the generation block marks the tokens that a fine-tune learns."""


def train_tokenizer(texts: Iterable[str], vocab_size: int) -> PreTrainedTokenizerFast:
    """Train a byte-level BPE that gives back every text unchanged.

    Digits stand alone, which helps sums and copying. Line ends stand alone too, so that the
    first token of a message never merges with the line end of the template in front of it.
    """
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex("\n"), "isolated"),
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        min_frequency=2,
        show_progress=False,
        special_tokens=SPECIAL_TOKENS,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
    )
    tokenizer.train_from_iterator(texts, trainer)
    wrapped: PreTrainedTokenizerFast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token=IM_END,
        pad_token=PAD,
        additional_special_tokens=[IM_START, END_OF_TEXT],
        model_max_length=1024,
        clean_up_tokenization_spaces=False,
        padding_side="left",
    )
    wrapped.chat_template = CHAT_TEMPLATE
    return wrapped


def encode_conversation(
    tokenizer: PreTrainedTokenizerFast, conversation: list[dict[str, str]]
) -> tuple[list[int], list[bool]]:
    """Return the token ids of a conversation and, for each, whether it is learned.

    The same result as ``apply_chat_template`` with ``return_assistant_tokens_mask``, many
    times faster; ``pretrain.py`` checks the two against each other.
    """
    ids: list[int] = []
    learned: list[bool] = []
    for message in conversation:
        is_learned = message["role"] == "assistant"
        header = _encode(tokenizer, f"{IM_START}{message['role']}\n")
        body = _encode(tokenizer, message["content"] + IM_END)
        tail = _encode(tokenizer, "\n")
        ids += header + body + tail
        learned += [False] * len(header) + [is_learned] * len(body) + [False] * len(tail)
    return ids, learned


def _encode(tokenizer: PreTrainedTokenizerFast, text: str) -> list[int]:
    ids: list[int] = tokenizer.backend_tokenizer.encode(text).ids
    return ids
