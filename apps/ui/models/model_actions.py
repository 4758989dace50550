"""What a visitor can do on the page "Models", through the API and with the visitor's key."""

from typing import NamedTuple

from apps.client.client import ApiClient


class ModelAction(NamedTuple):
    """What a visitor's browser asks for; all values come from it, and the API checks them."""

    action: str = ""
    model: str = ""
    alias: str = ""
    source: str = ""
    revision: str = ""
    new_id: str = ""
    repository: str = ""
    public: str = ""
    transfer: str = ""


def read_action(data: object) -> ModelAction:
    """Read an action from the data of an event; unexpected values are ignored."""
    if not isinstance(data, dict):
        return ModelAction()
    values = (data.get(key) for key in ModelAction._fields)
    return ModelAction(*(value if isinstance(value, str) else "" for value in values))


async def perform(client: ApiClient, action: ModelAction) -> str:
    """Perform an action, and return what was done; empty for an unknown one.

    Raises `ApiClientError`.
    """
    model, alias = action.model, action.alias.strip()
    match action.action:
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
    return await _transfer(client, action)


async def _transfer(client: ApiClient, action: ModelAction) -> str:
    """Start or cancel an installation from the hub or a push to it."""
    match action.action:
        case "install":
            begun = await client.hub.install(
                action.source.strip(),
                revision=action.revision.strip() or None,
                model_id=action.new_id.strip() or None,
            )
            return f"{begun.repository} is being installed as {begun.model}."
        case "push":
            begun = await client.hub.push(
                action.model, action.repository.strip(), private=not action.public
            )
            return f"{begun.model} is being pushed to {begun.repository}."
        case "cancel":
            begun = await client.hub.cancel(action.transfer)
            return f"The transfer of {begun.repository} is being cancelled."
    return ""
