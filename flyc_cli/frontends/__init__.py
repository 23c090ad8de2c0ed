"""Front ends: from a build request to a traced MLIR module and its signature."""
