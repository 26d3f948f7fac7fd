"""The languages that a sandbox runs: how each is called, and which programs it needs inside.

The names are those of SandboxFusion. Python and bash are part of every sandbox; the others run where their compiler or
runtime is installed, below /usr.
"""

from __future__ import annotations

from dataclasses import dataclass

from agentloop.errors import UserError, nearest


@dataclass(slots=True, frozen=True)
class Language:
    name: str
    main: str
    """The file that the code is written to, in the working directory."""
    run: tuple[str, ...]
    """The command that runs it, there."""
    compile: tuple[str, ...] = ()
    """The command that comes before it, if any."""
    install: str = ""
    """What to do where a program of it is missing."""
    opening: str = ""
    """Put before code that does not have it."""
    module: str = ""
    """A Python module that the sandbox must show."""

    @property
    def programs(self) -> tuple[str, ...]:
        """The programs to be found on the PATH of the sandbox."""
        return tuple(dict.fromkeys(argv[0] for argv in (self.compile, self.run) if argv and "/" not in argv[0]))

    def source(self, code: str) -> str:
        """What is written to the main file."""
        return code if self.opening.strip() in code else self.opening + code

    def missing(self, program: str) -> UserError:
        """The error for a program that the sandbox does not have."""
        return UserError(
            f"The language {self.name!r} needs the program {program}, which the sandbox does not have: {self.install}."
        )


def _debian(*packages: str) -> str:
    return f"`apt-get install {' '.join(packages)}` on Debian"


# A small program is run a thousand times a minute: no time is spent on a heap of many threads and a second compiler.
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

# Further names of SandboxFusion, and why they are not here.
_NOT_OFFERED = {
    "cuda": "the sandbox shows no GPU",
    "python_gpu": "the sandbox shows no GPU",
    "jest": "it needs a project: run `jest` from a bash program, with the project in `files`",
    "junit": "it needs a project: run it from a bash program, with the jar in `files`",
    "sql": "SandboxFusion has no runner for it either; Python has sqlite3",
}


def find(name: str) -> Language:
    """Raises `UserError` for a language that the sandbox does not know."""
    if name in _NOT_OFFERED:
        raise UserError(f"The sandbox does not run {name!r}: {_NOT_OFFERED[name]}. It has: {', '.join(NAMES)}.")
    if name not in _BY_NAME:
        raise UserError(f"The sandbox has no language {name!r}.{nearest(name, NAMES)} It has: {', '.join(NAMES)}.")
    return _BY_NAME[name]
