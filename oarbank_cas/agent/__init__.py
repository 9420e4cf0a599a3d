"""The agent's side: a finished job's files into the store, and a job's inputs out of it."""
