"""Chat templates: rendering in a process with limits, and encoding of message content as text."""
