"""Conversion of rows in any supported format to tokens on disk; all rows are checked first."""
