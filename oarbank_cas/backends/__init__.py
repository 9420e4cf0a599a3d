"""Storage: one module per kind, all behind the port in `base`."""
