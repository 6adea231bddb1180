"""Policies: small functions that the scheduler is given by name."""
