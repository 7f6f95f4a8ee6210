"""One module a case."""
