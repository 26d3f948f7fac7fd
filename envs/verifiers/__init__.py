"""Environments of verifiers. Their rollouts run in an interpreter that has the package, and call the gateway."""
