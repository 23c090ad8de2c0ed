"""The FlyDSL versions that flyc is checked on, where they can be read without importing FlyDSL."""

CHECKED_VERSIONS = ("0.3.1", "0.3.4", "0.4.2", "0.5.0")
