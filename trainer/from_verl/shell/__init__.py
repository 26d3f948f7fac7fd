"""Runs a launch script in a sandbox, to see which commands it would start.

`running` starts bash in a sandbox and reads its records. `prelude.sh` is what that bash executes before the script.
"""
