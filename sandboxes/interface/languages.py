"""The languages that a sandbox can run, and the programs that each needs.

The names are SandboxFusion's. Every sandbox has Python and bash. The other languages work if their compiler or runtime
is installed below /usr.
"""

from __future__ import annotations

from dataclasses import dataclass

from agentloop.errors import UserError, nearest


@dataclass(slots=True, frozen=True)
class Language:
    """How the sandbox compiles and runs one language."""

    name: str
    main: str
    """Name of the file in the working directory to which the code is written."""
    run: tuple[str, ...]
    """Command that runs the main file, in the working directory."""
    compile: tuple[str, ...] = ()
    """Command that compiles the file first, if the language needs one."""
    install: str = ""
    """Hint on how to install a missing program."""
    opening: str = ""
    """Text to put before code that does not contain it."""
    module: str = ""
    """Python module that the sandbox must be able to import."""

    @property
    def programs(self) -> tuple[str, ...]:
        """Return the programs that the PATH of the sandbox must contain."""
        return tuple(dict.fromkeys(argv[0] for argv in (self.compile, self.run) if argv and "/" not in argv[0]))

    def source(self, code: str) -> str:
        """Return the content of the main file for this code."""
        return code if self.opening.strip() in code else self.opening + code

    def missing(self, program: str) -> UserError:
        """Return the error for a program that the sandbox does not have."""
        return UserError(
            f"The language {self.name!r} needs the program {program}, which the sandbox does not have: {self.install}."
        )


def _debian(*packages: str) -> str:
    return f"`apt-get install {' '.join(packages)}` on Debian"


# Java programs here are small and many, so save the time for a parallel heap and a second compiler.
_JAVA = ("-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xshare:auto")
_IVERILOG = ("iverilog", "-Wall", "-Winfloop", "-Wno-timescale", "-g2012", "-s", "tb", "-o", "main.vvp", "main.sv")
_PYTEST = ("python3", "-m", "pytest", "-p", "no:cacheprovider", "test_main.py")

_LANGUAGES = (
    Language("python", "main.py", ("python3", "main.py")),
    Language("bash", "main.sh", ("bash", "main.sh")),
    Language("pytest", "test_main.py", _PYTEST, install="show it with packages=['pytest']", module="pytest"),
    Language("cpp", "main.cpp", ("./main",), ("g++", "-std=c++17", "main.cpp", "-o", "main"), _debian("g++")),
    Language("csharp", "main.cs", ("mono", "main.exe"), ("mcs", "main.cs"), _debian("mono-mcs", "mono-runtime")),
    Language("D_ut", "main.d", ("./main",), ("ldmd2", "main.d", "-unittest", "-of=main"), _debian("ldc")),
    Language("go", "main.go", ("./main",), ("go", "build", "-o", "main", "main.go"), _debian("golang-go")),
    Language("go_test", "main_test.go", ("go", "test", "main_test.go"), install=_debian("golang-go")),
    Language(
        "java",
        "Main.java",
        ("java", *_JAVA, "-ea", "Main"),
        ("javac", *(f"-J{option}" for option in _JAVA), "Main.java"),
        _debian("default-jdk-headless"),
    ),
    Language("julia", "main.jl", ("julia", "main.jl"), install="https://julialang.org/downloads, below /usr/local"),
    Language("kotlin_script", "main.kts", ("kotlinc", "-script", "main.kts"), install=_debian("kotlin")),
    Language("lean", "Main.lean", ("lean", "Main.lean"), install="https://lean-lang.org/install, below /usr/local"),
    Language("lua", "main.lua", ("lua", "main.lua"), install=_debian("lua5.4")),
    Language("nodejs", "main.js", ("node", "main.js"), install=_debian("nodejs")),
    Language("perl", "main.pl", ("perl", "main.pl"), install=_debian("perl-base")),
    Language("php", "main.php", ("php", "main.php"), install=_debian("php-cli"), opening="<?php\n"),
    Language("R", "main.R", ("Rscript", "main.R"), install=_debian("r-base-core")),
    Language("racket", "main.rkt", ("racket", "main.rkt"), install=_debian("racket")),
    Language("ruby", "main.rb", ("ruby", "main.rb"), install=_debian("ruby")),
    Language("rust", "main.rs", ("./main",), ("rustc", "main.rs", "-o", "main"), _debian("rustc")),
    Language("scala", "main.scala", ("scala", "main.scala"), install="https://www.scala-lang.org, below /usr/local"),
    Language(
        "swift", "main.swift", ("./main",), ("swiftc", "main.swift", "-o", "main"), "https://www.swift.org/install"
    ),
    Language("typescript", "main.ts", ("tsx", "main.ts"), install="`npm install --global tsx`"),
    Language("verilog", "main.sv", ("vvp", "-n", "main.vvp"), _IVERILOG, _debian("iverilog")),
)
NAMES = tuple(language.name for language in _LANGUAGES)
_BY_NAME = {language.name: language for language in _LANGUAGES}

# Further names of SandboxFusion, with the reason why sandboxes do not run them.
_NOT_OFFERED = {
    "cuda": "the sandbox shows no GPU",
    "python_gpu": "the sandbox shows no GPU",
    "jest": "it needs a project: run `jest` from a bash program, with the project in `files`",
    "junit": "it needs a project: run it from a bash program, with the jar in `files`",
    "sql": "SandboxFusion has no runner for it either; Python has sqlite3",
}


def find(name: str) -> Language:
    """Return the language of this name. Raises `UserError` for a language that sandboxes do not run."""
    if name in _NOT_OFFERED:
        raise UserError(f"The sandbox does not run {name!r}: {_NOT_OFFERED[name]}. Languages: {', '.join(NAMES)}.")
    if name not in _BY_NAME:
        raise UserError(f"Unknown language {name!r}.{nearest(name, NAMES)} Languages: {', '.join(NAMES)}.")
    return _BY_NAME[name]
