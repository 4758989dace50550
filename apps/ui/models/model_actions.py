"""What a visitor can do on the page "Models", through the API and with the visitor's key."""

from typing import NamedTuple

from apps.client.client import ApiClient


class ModelAction(NamedTuple):
    """What a visitor's browser asks for; all values come from it, and the API checks them."""

    name: str = ""
    model: str = ""
    alias: str = ""


def read_action(data: object) -> ModelAction:
    """Read an action from the data of an event; unexpected values are ignored."""
    if not isinstance(data, dict):
        return ModelAction()
    values = (data.get(key) for key in ("action", "model", "alias"))
    return ModelAction(*(value if isinstance(value, str) else "" for value in values))


async def perform(client: ApiClient, action: ModelAction) -> str:
    """Perform an action, and return what was done; empty for an unknown one.

    Raises `ApiClientError`.
    """
    model, alias = action.model, action.alias.strip()
    match action.name:
        case "promote":
            moved = await client.aliases.point(alias, model)
            return f"{moved.id} points to {moved.model} now."
        case "roll_back":
            moved = await client.aliases.roll_back(alias)
            return f"{moved.id} points to {moved.model} again."
        case "remove":
            await client.aliases.remove(alias)
            return f"The alias {alias} was removed."
        case "verify":
            await client.models.verify(model)
            return f"All files of {model} are as they were published."
        case "delete":
            await client.models.delete(model)
            return f"{model} was deleted."
    return ""
