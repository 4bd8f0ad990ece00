"""Validation: runs the gate over cells in a killable worker and writes traces."""
