# mypy: ignore-errors
"""Starts the code inside the sandbox. Its text is given to `python -c` there, so it uses the standard library only.

It sets the limits, tells the outside that the code starts, and runs `main.py` as `__main__`: tracebacks and the module
look as if python had been called with the file, since its own frame is taken out of them.
"""


def _prepare(sys):
    import os
    import resource

    processes, memory, file_size, cpu, echo = map(int, sys.argv[1:])
    for limit, value in (
        (resource.RLIMIT_NPROC, processes),
        (resource.RLIMIT_DATA, memory),
        (resource.RLIMIT_AS, 4 * memory),  # address space is no measure of memory: only a backstop
        (resource.RLIMIT_FSIZE, file_size),
        (resource.RLIMIT_CPU, cpu),
        (resource.RLIMIT_NOFILE, 1024),
        (resource.RLIMIT_CORE, 0),
    ):
        resource.setrlimit(limit, (value, value))

    # What `site` adds, without its search for packages: that is slow, and looks where nothing is.
    import _sitebuiltins
    import builtins

    builtins.exit, builtins.quit = _sitebuiltins.Quitter("exit", "EOF"), _sitebuiltins.Quitter("quit", "EOF")
    builtins.help = _sitebuiltins._Helper()
    sys.argv[:] = ["main.py"]
    sys.path[0] = os.getcwd()
    os.write(3, b"1")
    os.close(3)
    with open("main.py", "rb") as file:
        return file.read(), echo


def _compile(source, echo):
    """The code objects of the program; with `echo` a last expression is one of its own that prints its value."""
    if b"\0" in source:
        raise SyntaxError("source code cannot contain null bytes")
    tree = compile(source, "main.py", "exec", flags=0x400, dont_inherit=True)  # ast.PyCF_ONLY_AST
    if not (echo and tree.body and type(tree.body[-1]).__name__ == "Expr"):
        return [compile(tree, "main.py", "exec", dont_inherit=True)]
    import _ast

    last = _ast.Interactive([tree.body.pop()])
    body = compile(tree, "main.py", "exec", dont_inherit=True)
    return [body, compile(last, "main.py", "single", flags=body.co_flags & 0x1FF0000, dont_inherit=True)]


def _run():
    import sys

    def excepthook(kind, error, traceback):
        # The first frame is the harness. With a syntax error in main.py there is no other.
        while traceback is not None and traceback.tb_frame.f_code.co_filename == "<string>":
            traceback = traceback.tb_next
        error.__traceback__ = traceback
        sys.__excepthook__(kind, error, traceback)

    sys.excepthook = excepthook
    main = sys.modules["__main__"].__dict__
    prepare, compile_program = main.pop("_prepare"), main.pop("_compile")
    del main["_run"]
    main["__doc__"], main["__file__"] = None, "main.py"
    for code in compile_program(*prepare(sys)):
        exec(code, main)


if __name__ == "__main__":
    _run()
