"""Tables as CSV, without formulas."""

import pytest

from apps.csv_table import write_csv_line


@pytest.mark.parametrize("text", ["=1+1", "+1", "-1+1", "@SUM(A1)", "\t=1", "\r=1"])
def test_formula_begins_with_an_apostrophe(text: str) -> None:
    assert write_csv_line([text]).decode().strip('"\r\n') == f"'{text}".strip("\r\n")


def test_other_cells_are_kept() -> None:
    line = write_csv_line(["1 = 1", -1, -0.5, True, None, 'a "b"\n', "gr\u00fc\u00df"])
    assert line.decode() == '1 = 1,-1,-0.5,true,,"a ""b""\n",gr\u00fc\u00df\r\n'
