"""The engine over a virtual clock: cost models, chips, replicas. No jax here."""
