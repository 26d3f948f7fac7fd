"""Reads shell scripts without running them: bash's grammar, expansions and builtins, with no program behind them.

`statements` and `words` read a script into the classes of `syntax`. `interpreter` follows it with `expansion`,
`arithmetic`, `patterns`, `conditions`, `builtins` and `programs`. Nothing in this folder starts a process, writes a
file, or reads one other than the script. What a script asks of the machine is `unknown`.
"""
