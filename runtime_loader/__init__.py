"""Maps a `.flybundle` and launches its kernels on hipModule, with no compiler present."""
