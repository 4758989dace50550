"""Chat templates: rendered in a process with limits, message content encoded as text."""
