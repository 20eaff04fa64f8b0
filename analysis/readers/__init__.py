"""One module per kind of file in a run directory: bytes in, records or arrays out. No verdicts."""
