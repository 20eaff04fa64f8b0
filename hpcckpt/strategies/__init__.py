"""Which ranks write which part of a state. One file, one strategy."""
