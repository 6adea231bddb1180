"""Why a run was slow: the cause of each percentile, and the knob that addresses it."""
