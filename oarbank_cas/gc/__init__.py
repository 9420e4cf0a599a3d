"""Garbage collection: what gc may do (`rules`), finds (`mark`, `retention`, `plan`) and does (`sweep`)."""
