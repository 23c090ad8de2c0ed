"""The version of the lowering, where it can be read without importing MLIR."""

# Part of what a build is keyed on: raise it when the same input would lower to other bytes.
LOWERING_VERSION = 2
