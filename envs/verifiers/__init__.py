"""Environments of verifiers: their rollouts run in an interpreter that has the package, and call the gateway."""
