"""How a state becomes bytes. One file, one format."""
