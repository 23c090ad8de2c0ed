"""The lowering of one traced module to code objects, a launch plan and resources."""
