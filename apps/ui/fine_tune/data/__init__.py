"""The data of a fine-tune: files, rows, columns, statistics."""
