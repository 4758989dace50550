"""A complete chat model of a few hundred kilobytes for tests of training and serving."""

from pathlib import Path

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import GenerationConfig, LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

PAD, END_OF_TEXT, IM_START, IM_END = "<|pad|>", "<|endoftext|>", "<|im_start|>", "<|im_end|>"
CONTEXT_LENGTH = 128

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
    "{%- if add_generation_prompt -%}{{- '<|im_start|>assistant\\n' -}}{%- endif -%}\n"
)

_LINES = (
    "A small model learns from a few lines what words look like.",
    "The quick brown fox jumps over the lazy dog, and the dog sleeps on.",
    "How many loaves does the baker bake in the morning? Twelve, and two for the fox.",
    "Grüße aus Köln, café crème, naïve Übungen; 你好 世界 🙂 🚀 🙂",
    "user assistant system 0 1 2 3 4 5 6 7 8 9",
)


def build_tiny_model(directory: Path, *, seed: int = 0, dtype: torch.dtype = torch.float32) -> Path:
    """Write a random two-layer Llama with tokenizer and chat template; return `directory`.

    `seed` changes the weights, but not the tokenizer. Embedding and head are tied, the context
    length is `CONTEXT_LENGTH` tokens, the end-of-turn token is `<|im_end|>`.
    """
    directory.mkdir(parents=True, exist_ok=True)
    tokenizer = _train_tokenizer()
    tokenizer.save_pretrained(directory)
    pad_id, eos_id = tokenizer.pad_token_id, tokenizer.eos_token_id
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=CONTEXT_LENGTH,
        tie_word_embeddings=True,
        # Large enough that greedy decoding varies instead of repeating one token.
        initializer_range=0.6,
        bos_token_id=None,
        eos_token_id=eos_id,
        pad_token_id=pad_id,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = LlamaForCausalLM(config)
    model.generation_config = GenerationConfig(
        do_sample=False, eos_token_id=eos_id, pad_token_id=pad_id
    )
    model.to(dtype).save_pretrained(directory)
    return directory


def _train_tokenizer() -> PreTrainedTokenizerFast:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=384,
        show_progress=False,
        special_tokens=[PAD, END_OF_TEXT, IM_START, IM_END],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
    )
    tokenizer.train_from_iterator(_LINES, trainer)
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token=IM_END,
        pad_token=PAD,
        additional_special_tokens=[IM_START, END_OF_TEXT],
        model_max_length=CONTEXT_LENGTH,
        clean_up_tokenization_spaces=False,
        chat_template=CHAT_TEMPLATE,
    )
