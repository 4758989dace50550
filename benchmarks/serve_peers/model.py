"""A random Llama with a tokenizer that covers its whole vocabulary."""

import string
from itertools import chain, islice, product
from pathlib import Path

from tokenizers import Tokenizer, decoders, models

_VOCABULARY = 32_000
_CONTEXT = 2048
_HEAD_SIZE = 64
_TEMPLATE = (
    "{% for message in messages %}{{ message['role'] + ': ' + message['content'] + '\\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ 'assistant: ' }}{% endif %}"
)


def build_model(
    folder: Path,
    *,
    seed: int = 0,
    hidden_size: int = 768,
    num_layers: int = 12,
    dtype: str = "bfloat16",
) -> Path:
    """Write a model, by default of 110 million parameters in bf16; returns its folder.

    It has no end-of-sequence token, so only the token limit ends an answer.
    """
    import torch
    from transformers import AutoModelForCausalLM, LlamaConfig, PreTrainedTokenizerFast

    config = LlamaConfig(
        vocab_size=_VOCABULARY,
        hidden_size=hidden_size,
        intermediate_size=hidden_size * 8 // 3,
        num_hidden_layers=num_layers,
        num_attention_heads=hidden_size // _HEAD_SIZE,
        num_key_value_heads=hidden_size // _HEAD_SIZE,
        max_position_embeddings=_CONTEXT,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=None,
        pad_token_id=None,
    )
    torch.manual_seed(seed)
    model = AutoModelForCausalLM.from_config(config, dtype=getattr(torch, dtype))
    model.save_pretrained(folder)
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=_build_tokenizer(),
        model_max_length=_CONTEXT,
        clean_up_tokenization_spaces=False,
        chat_template=_TEMPLATE,
    )
    tokenizer.save_pretrained(folder)
    return folder


def _build_tokenizer() -> Tokenizer:
    """Build a BPE of one to three ASCII characters, in which every token is a text of its own.

    A random model repeats a token for a whole answer. If that token were part of a character, the
    servers would hold back the text of the answer, and the time to its first text would not be the
    time to its first token.
    """
    alphabet = [*string.printable.strip(), " ", "\n"]
    letters = string.ascii_letters + string.digits
    twos = list(product(letters, letters))
    threes = product(("".join(two) for two in twos), letters)
    pairs = list(islice(chain(twos, threes), _VOCABULARY - len(alphabet)))
    tokens = [*alphabet, *(first + second for first, second in pairs)]
    vocabulary = {token: i for i, token in enumerate(tokens)}
    tokenizer = Tokenizer(models.BPE(vocabulary, pairs, unk_token="?"))  # noqa: S106 - a token, not a password
    tokenizer.decoder = decoders.Fuse()
    return tokenizer
