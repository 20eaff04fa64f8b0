"""Model architectures, described once for every framework. One file, one model."""
