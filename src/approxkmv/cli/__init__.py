"""The command line: one file for each command, loaded by ``main``."""
