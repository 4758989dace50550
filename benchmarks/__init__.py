"""One module per question; the last line of output is one JSON object."""
