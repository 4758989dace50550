"""Questions to the API about the keys of visitors."""

from apps.access.roles import Permission
from apps.client.access import AccessClient
from apps.client.errors import ApiClientError, RequestRefusedError
from apps.ui.protection.access import Verdict

_INVALID_KEY_CODE = "invalid_api_key"


class KeyCheck:
    """Asks the API what a key may do; requests that fail raise nothing."""

    def __init__(self, access: AccessClient) -> None:
        self._access = access

    async def check(self, key: str | None) -> Verdict:
        """Return the API's verdict on a key."""
        try:
            # On a connection of its own: one that was idle for seconds may be closed meanwhile.
            access = await self._access.get(key, keeps_connection=False)
        except RequestRefusedError as exc:
            is_wrong = exc.status == 429 and exc.code == _INVALID_KEY_CODE
            return Verdict.REFUSED if exc.status == 401 or is_wrong else Verdict.UNKNOWN
        except ApiClientError:
            return Verdict.UNKNOWN
        return Verdict.NOT_NEEDED if access.key is None else Verdict.VALID

    async def may_write_files(self, key: str | None) -> bool:
        """Return whether a key may upload files; False also if the request fails."""
        try:
            access = await self._access.get(key)
        except ApiClientError:
            return False
        return Permission.WRITE_FILES.value in access.permissions
