"""The ways to an answer, one file each."""
