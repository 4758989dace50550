import pytest
from pydantic import ValidationError

from apps.hub.hub_ids import check_hub_id, check_pattern, check_revision, matches_pattern
from apps.hub.settings import HubSettings
from apps.settings import ApplicationSettings


@pytest.mark.parametrize(
    "hub_id", ["gpt2", "Qwen/Qwen3-0.6B", "a/b", "_a/b_c.d-e", "o/" + "n" * 96]
)
def test_hub_ids_are_accepted(hub_id: str) -> None:
    assert check_hub_id(hub_id) == hub_id


@pytest.mark.parametrize(
    "hub_id",
    [
        *("", "/", "a/", "/a", "/etc/passwd", "a/b/c", "..", "../x", "a/..", "./a", "~", "~/a"),
        *("~root/a", "a b/c", "a\\b", "a/b\n", "a/b?x=1", "a/b#c", "a/b@c", "é/b", "a%2fb", "a/-b"),
        *("a/b.", "a--b/c", "a/b..c", "a/b.git", "https://huggingface.co/a/b", "o/" + "n" * 97),
        *(".hidden/a", "a/\0"),
    ],
)
def test_other_texts_are_no_hub_ids(hub_id: str) -> None:
    with pytest.raises(ValueError, match=r"is no id of a model on the hub: expected name or owner"):
        check_hub_id(hub_id)


def test_repositories_have_an_owner() -> None:
    assert check_hub_id("me/name", needs_owner=True) == "me/name"
    with pytest.raises(ValueError, match="^'name' is no id of a model on the hub: expected owner/"):
        check_hub_id("name", needs_owner=True)


@pytest.mark.parametrize("revision", ["main", "v1.0", "a" * 40, "feature/x"])
def test_revisions_are_accepted(revision: str) -> None:
    assert check_revision(revision) == revision


@pytest.mark.parametrize(
    "revision",
    ["", "refs/pr/1", "REFS/pr/1", "refs/heads/x", "../x", "a/../b", "a//b", "-x", "a b"],
)
def test_other_texts_and_pull_requests_are_no_revisions(revision: str) -> None:
    with pytest.raises(ValueError, match="is no revision: expected the name of a branch or a tag"):
        check_revision(revision)


@pytest.mark.parametrize(
    ("hub_id", "pattern", "is_matched"),
    [
        ("Qwen/Qwen3", "Qwen/*", True),
        ("Qwen/Qwen3", "Qwen/Qwen3", True),
        ("Qwen/Qwen3", "*/*", True),
        ("Qwen/Qwen3", "Qwen/Qwen?", True),
        ("qwen/Qwen3", "Qwen/*", False),  # owners differ by case
        ("Qwen2/Qwen3", "Qwen/*", False),
        ("Qwen/Qwen3", "*", False),  # never matches a '/'
        ("Qwen/Qwen3", "Qwen*", False),
        ("gpt2", "*", True),
        ("gpt2", "*/*", False),
        ("gpt2", "gpt2", True),
        ("gpt2-evil/x", "gpt2*", False),
        ("Qwen/Qwen3", "Qwen/Qwen", False),
    ],
)
def test_patterns_match_whole_parts(hub_id: str, pattern: str, is_matched: bool) -> None:
    assert matches_pattern(hub_id, check_pattern(pattern)) is is_matched


@pytest.mark.parametrize("pattern", ["", "/", "a/", "/a", "a/b/c", "[ab]/c", "a b/c", "../x/y"])
def test_other_texts_are_no_patterns(pattern: str) -> None:
    with pytest.raises(ValidationError, match="is no pattern of hub ids: expected owner/name"):
        HubSettings(install=(pattern,))


def test_nothing_is_permitted_by_default() -> None:
    settings = ApplicationSettings().hub
    assert (settings.install, settings.push) == ((), ())
    assert not settings.permits_install("Qwen/Qwen3")
    assert not settings.permits_push("me/x")


def test_settings_are_read_from_the_deploy_file() -> None:
    given = {"hub": {"install": ["Qwen/*"], "push": ["me/*"]}}
    settings = ApplicationSettings.model_validate(given).hub
    assert settings.permits_install("Qwen/Qwen3")
    assert not settings.permits_install("me/x")
    assert settings.permits_push("me/x")
    with pytest.raises(ValidationError, match="names no owner; expected owner/name, as in 'me/"):
        ApplicationSettings.model_validate({"hub": {"push": ["name"]}})
    with pytest.raises(ValidationError, match=r"hub\.pull"):
        ApplicationSettings.model_validate({"hub": {"pull": []}})
