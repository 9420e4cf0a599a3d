"""The local cache in front of a store: verified blobs on this machine's disk, shared by all its processes."""
