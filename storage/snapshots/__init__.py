"""Snapshots of a storage root, for backup and restore."""
