"""Users, arrivals and lengths: what a run is asked to serve. No jax here."""
