"""Reproducing published figures: cells that run, numbers beside the paper's, verdicts."""
