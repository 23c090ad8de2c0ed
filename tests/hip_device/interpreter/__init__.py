"""Executes AMDGPU code objects on a CPU: an interpreter vectorised over lanes and waves."""
