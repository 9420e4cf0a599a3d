"""The index of key inputs: which recorded jobs are like a given one. Bookkeeping that nothing else relies on."""
