import pytest

from system.library_errors import LibraryError, translate_library_errors


@pytest.mark.parametrize(
    ("raised", "reason"),
    [
        (KeyError("x.weight"), "KeyError: 'x.weight'"),
        (RuntimeError("no\n  kernel"), "RuntimeError: no kernel"),
        (MemoryError(), "MemoryError"),
    ],
)
def test_message_has_failure_reason_and_advice(raised: Exception, reason: str) -> None:
    with pytest.raises(LibraryError) as found, translate_library_errors("it failed", "update it"):
        raise raised
    assert str(found.value) == f"it failed ({reason}); update it"
    assert found.value.__cause__ is raised


@pytest.mark.parametrize("raised", [FileNotFoundError("x"), KeyboardInterrupt()])
def test_faults_of_the_machine_and_interruptions_are_unchanged(raised: BaseException) -> None:
    with pytest.raises(type(raised)) as found, translate_library_errors("it failed", "update it"):
        raise raised
    assert found.value is raised
