"""The `flyc` command and the build: manifest, specialisation, artifact, bundle."""
