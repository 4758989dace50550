import pytest

from apps.hub.redaction import redact


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("token hf_abcDEF123456 was", "token <hidden> was"),
        ("Authorization: Bearer x.y-z, more", "Authorization: Bearer <hidden> more"),
        ("at https://me:pw@hub.org/x failed", "at https://hub.org/x failed"),
        ("https://cdn/x?X-Sig=abc&y=1 (3)", "https://cdn/x (3)"),
        ("what? nothing", "what? nothing"),
        ("by known-secret", "by <hidden>"),
        ("by env-secret", "by <hidden>"),
    ],
)
def test_secrets_are_removed(text: str, expected: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "env-secret")
    assert redact(text, ["known-secret", None, ""]) == expected
