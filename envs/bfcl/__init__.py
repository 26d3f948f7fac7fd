"""The multi-turn tasks of BFCL, judged by the package's rules, in an interpreter that has the package."""
