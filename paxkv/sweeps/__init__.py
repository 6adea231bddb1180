"""Many trials of one config: the grid, its cells as processes, and their one table."""
