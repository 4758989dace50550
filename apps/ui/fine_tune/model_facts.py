"""The line below the menu of models: size, context, data type and license of the chosen one."""

import logging
from html import escape

from apps.client.client import ApiClient
from apps.client.errors import ApiClientError
from apps.client.model_resources import ModelCard
from apps.ui.figures import format_count

_logger = logging.getLogger(__name__)


def render_model_facts(card: ModelCard) -> str:
    """Render what is known of a model in one line; empty if nothing is."""
    facts = []
    if card.num_parameters is not None:
        facts.append(f"{format_count(card.num_parameters)} parameters")
    if card.rank is not None:
        facts.append(f"rank {card.rank}")
    if card.context_length is not None:
        facts.append(f"context of {card.context_length:,} tokens")
    if card.dtype is not None:
        facts.append(card.dtype)
    if card.license is not None:
        facts.append(f"license {card.license}")
    text = escape(" · ".join(facts))
    return f'<p class="ts-muted">{text}</p>' if facts else ""


async def show_model_facts(client: ApiClient, model: str | None) -> str:
    """Describe the chosen model; empty for none, and if the API does not describe it."""
    if not model:
        return ""
    try:
        return render_model_facts(await client.models.get_card(model))
    except ApiClientError as exc:
        _logger.warning("The card of %s cannot be read: %s", model, exc)
        return ""
