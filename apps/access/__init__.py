"""Who may do what: keys, roles, rate limits and the audit log."""
