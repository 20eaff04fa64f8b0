"""Is training deterministic, and is a restart exact? What the legs of such a run record, and how they are compared."""
