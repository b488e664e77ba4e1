"""The verbs of the storage contract, one file a noun, written once for every database."""
