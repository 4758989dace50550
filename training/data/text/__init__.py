"""Rows for language models: chats, prompts with completions, and plain text."""
