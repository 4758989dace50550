"""Readers of each kind of file, which yield records; `training.data.readers` chooses one."""
