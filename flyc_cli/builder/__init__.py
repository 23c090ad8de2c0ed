"""The build: requests to workers, artifacts to a bundle."""
