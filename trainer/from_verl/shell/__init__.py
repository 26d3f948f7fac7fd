"""Run a launch script in a sandbox to record the commands that it would start.

`running` starts bash in a sandbox and reads its records. bash executes `prelude.sh` before the script.
"""
