import pytest

from templating.renderer import RenderLimits
from tests.chat_templates import FAMILIES
from tests.test_chat_families import find_end_ids, make_tokenizer
from training.data.chat.end_tokens import EndTokens


@pytest.mark.parametrize(
    ("name", "has_calls", "chosen"),
    [
        ("glm 4.5", False, "<|user|>"),
        ("glm 4.5", True, "<|observation|>"),
        ("falcon", False, "<|endoftext|>"),
        ("falcon", True, "<|endoftext|>"),
    ],
)
def test_chosen_end_token_follows_template(name: str, has_calls: bool, chosen: str) -> None:
    family = FAMILIES[name]
    tokenizer = make_tokenizer(family)
    end_tokens = EndTokens(tokenizer, find_end_ids(tokenizer, family))
    found = end_tokens.choose(0, RenderLimits(), has_calls=has_calls)
    assert tokenizer.convert_ids_to_tokens(found) == chosen


def test_model_without_end_tokens_has_no_choice() -> None:
    tokenizer = make_tokenizer(FAMILIES["falcon"])
    end_tokens = EndTokens(tokenizer, ())
    assert end_tokens.choose(0, RenderLimits(), has_calls=False) is None
    assert end_tokens.find("a<|endoftext|>") is None
