"""The contracts: envelopes, job keys, canonical JSON, manifests and portable paths. Pure: nothing here does I/O."""
