"""Training libraries with their distribution, each behind the same small interface. One file, one framework."""
