"""The campaign: looks for broken promises by the million, see README.md."""
