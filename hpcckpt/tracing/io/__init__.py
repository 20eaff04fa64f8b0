"""Plug-ins that trace a rank's file I/O; one file each, found by the registry."""
