"""What `flyc run` does: one specialisation launched on generated inputs, and timed."""
