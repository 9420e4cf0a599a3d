"""Garbage collection: what gc may do (`rules`), what it finds (`mark`, `plan`, `retention`) and what it does (`sweep`)."""
