"""How results look: as text and tables for people, as plain data for `--json`."""
