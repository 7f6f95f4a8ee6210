"""Files of lines: text, JSON and CSV, read at random through an index of offsets, or walked."""
