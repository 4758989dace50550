"""Conversion of chats to texts, as serving prompts a model, with the parts that are learned."""
