"""One config, run in simulation or really, to one row of results."""
