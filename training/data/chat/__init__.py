"""Chats to texts, as serving prompts a model with them, and what of them is learned."""
