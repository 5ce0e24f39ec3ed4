"""The audit log of one party: records in a Merkle tree, signed checkpoints, files on disk, and their verification."""
