"""Text environments of skyrl-gym, in an interpreter that has the package."""
