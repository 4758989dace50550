"""Access control: keys, roles, rate limits and the audit log."""
