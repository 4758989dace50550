"""Sizes and large numbers as text."""

_UNITS = ("bytes", "kB", "MB", "GB", "TB")
_COUNTS = (("B", 1e9), ("M", 1e6), ("K", 1e3))


def format_bytes(num_bytes: float) -> str:
    """Format a number of bytes with three digits, as in '15.3 MB'."""
    size = float(num_bytes)
    for unit in _UNITS[:-1]:
        if size < 999.5:
            return _format_digits(size, unit)
        size /= 1000
    return _format_digits(size, _UNITS[-1])


def format_count(number: int) -> str:
    """Format a large number, as in '596 M'."""
    for unit, size in _COUNTS:
        if number >= size:
            return _format_digits(number / size, unit)
    return str(number)


def format_metric(value: float) -> str:
    """Format a loss or another metric, as in '0.084', or '8.0e-05' for a very small one."""
    return f"{value:.1e}" if 0 < abs(value) < 0.0005 else f"{value:.3f}"


def _format_digits(value: float, unit: str) -> str:
    num_decimals = 1 if value < 99.95 and value != int(value) else 0
    return f"{value:,.{num_decimals}f} {unit}"
