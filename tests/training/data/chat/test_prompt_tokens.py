from typing import Any

import pytest

from tests.tokenizer_kinds import KINDS, make_tokenizer
from training.data.text.encoding import RowEncoder, TokenSample
from training.data.text.formats import Row

# The end of the prompt: a space, a line end that the answer may continue, half a word.
PROMPTS = {"space": "ASSISTANT: ", "line end": "ASSISTANT:\n", "half a word": "ASSISTANT: the "}
ANSWERS = ("Paris is nice.", "  indented", "\n\nlines", "Grüße 你好", "x")


def make_template(prompt: str) -> str:
    return (
        "{% for m in messages %}{% if m.role == 'user' %}USER: {{ m.content }} {% else %}"
        f"{prompt}{{{{ m.content }}}}{{{{ eos_token }}}}{{% endif %}}{{% endfor %}}"
        f"{{% if add_generation_prompt %}}{prompt}{{% endif %}}"
    )


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", PROMPTS)
def test_prompt_tokens_equal_those_of_serving(name: str, kind: str) -> None:
    tokenizer: Any = make_tokenizer(kind, make_template(PROMPTS[name]))
    for answer in ANSWERS:
        question = {"role": "user", "content": "Where?"}
        row = Row(1, (question, {"role": "assistant", "content": answer}), (False, True))
        with RowEncoder(tokenizer) as encoder:
            ((_, encoded),) = encoder.encode([[row]])
        assert isinstance(encoded, TokenSample)
        served = tokenizer.apply_chat_template(
            [question], add_generation_prompt=True, tokenize=False
        )
        prompt = tokenizer(served, add_special_tokens=False)["input_ids"]
        num_prompt = int(encoded.learned.argmax())
        assert encoded.input_ids[:num_prompt].tolist() == prompt
        assert encoded.learned[num_prompt:].all()
        whole = tokenizer(f"{served}{answer}", add_special_tokens=False)["input_ids"]
        assert tokenizer.decode(encoded.input_ids[:-1].tolist()) == tokenizer.decode(whole)
        assert encoded.input_ids[-1] == tokenizer.eos_token_id
