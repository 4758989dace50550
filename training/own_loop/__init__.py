"""Training functions of users, in place of our own loop."""
