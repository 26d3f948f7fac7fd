"""The multi-turn tasks of BFCL, judged as the package does, in an interpreter that has it."""
