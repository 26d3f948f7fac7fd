"""The table of languages: each runs if its programs are installed, and else names what to install."""

import shutil
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from agentloop.errors import UserError
from agentloop.sandboxes import Execution
from agentloop.sandboxes.interface import languages
from agentloop.sandboxes.levels.rootfs import ENVIRONMENT
from agentloop.sandboxes.levels.slots import Slots


def test_languages_are_found_by_sandbox_fusion_names():
    assert languages.find("cpp").compile[0] == "g++"
    assert languages.find("python").compile == ()
    assert len(set(languages.NAMES)) == len(languages.NAMES)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("pyhton", "Did you mean 'python'"),
        ("cuda", "shows no GPU"),
        ("junit", "bash program"),
        ("", "Languages: python"),
    ],
)
def test_unknown_names_raise_with_a_list_of_languages(name, message):
    with pytest.raises(UserError, match=message):
        languages.find(name)


def test_programs_lists_the_required_executables():
    assert languages.find("cpp").programs == ("g++",)
    assert languages.find("java").programs == ("javac", "java")
    assert languages.find("nodejs").programs == ("node",)


def test_every_language_has_install_instructions():
    for name in set(languages.NAMES) - {"python", "bash"}:
        language = languages.find(name)
        for program in language.programs:
            assert language.install in str(language.missing(program))
            assert program in str(language.missing(program))
        assert language.install


def test_php_code_gets_its_opening_tag_once():
    php = languages.find("php")
    assert php.source("echo 1;") == "<?php\necho 1;"
    assert php.source("<?php echo 1;") == "<?php echo 1;"


# Each prints 42.
PROGRAMS = {
    "python": "print(6 * 7)",
    "bash": "echo $((6 * 7))",
    "pytest": "def test_it():\n    assert 6 * 7 == 42",
    "cpp": "#include <iostream>\nint main() { std::cout << 6 * 7 << std::endl; }",
    "csharp": "class P { static void Main() { System.Console.WriteLine(6 * 7); } }",
    "D_ut": "import std.stdio; void main() { writeln(6 * 7); }",
    "go": 'package main\nimport "fmt"\nfunc main() { fmt.Println(6 * 7) }',
    "go_test": 'package main\nimport "testing"\nfunc TestIt(t *testing.T) { if 6 * 7 != 42 { t.Fail() } }',
    "java": "public class Main { public static void main(String[] a) { System.out.println(6 * 7); } }",
    "julia": "println(6 * 7)",
    "kotlin_script": "println(6 * 7)",
    "lean": "#eval 6 * 7",
    "lua": "print(6 * 7)",
    "nodejs": "console.log(6 * 7)",
    "perl": 'print 6 * 7, "\\n";',
    "php": "echo 6 * 7, PHP_EOL;",
    "R": 'cat(6 * 7, "\\n", sep = "")',
    "racket": "#lang racket\n(displayln (* 6 7))",
    "ruby": "puts 6 * 7",
    "rust": 'fn main() { println!("{}", 6 * 7); }',
    "scala": "object Main { def main(args: Array[String]): Unit = println(6 * 7) }",
    "swift": "print(6 * 7)",
    "typescript": "const answer: number = 6 * 7\nconsole.log(answer)",
    "verilog": 'module tb; initial $display("%0d", 6 * 7); endmodule',
}
TESTS = {"pytest": "1 passed", "go_test": "ok"}
INSTALLED = {"python", "bash", "cpp", "lua", "nodejs", "perl", "pytest"}
"""Languages that must run, because scripts/system-packages installs them."""


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def polyglot() -> AsyncIterator[Slots]:
    sandbox = Slots(slots=2, packages=["pytest"], disk_mb=512)
    await sandbox.start()
    yield sandbox
    await sandbox.close()


def test_every_language_has_a_test_program():
    assert set(PROGRAMS) == set(languages.NAMES)


@pytest.mark.slow
@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize("name", PROGRAMS)
async def test_language_runs_or_names_missing_programs(polyglot, name):
    language = languages.find(name)
    execution = Execution(code=PROGRAMS[name], language=name, timeout=60, compile_timeout=60, memory_mb=2048)
    missing = [program for program in language.programs if not shutil.which(program, path=ENVIRONMENT["PATH"])]
    if missing and name not in INSTALLED:
        with pytest.raises(UserError, match=f"needs the program {missing[0]}"):
            await polyglot.run(execution)
        return
    result = await polyglot.run(execution)
    assert result.return_code == 0, result
    assert TESTS[name] in result.stdout if name in TESTS else result.stdout == "42\n"


@pytest.mark.slow
@pytest.mark.asyncio(loop_scope="module")
async def test_compile_error_is_the_result_of_the_compiler(polyglot):
    result = await polyglot.run(Execution(code="int main() { return x; }", language="cpp", compile_timeout=60))
    assert not result.compiled
    assert not result.ok
    assert "was not declared" in result.stderr


@pytest.mark.slow
@pytest.mark.asyncio(loop_scope="module")
async def test_compiled_programs_support_limits_files_and_signals(polyglot):
    code = """
#include <cstdlib>
#include <iostream>
int main() { int n; std::cin >> n; std::cout << 2 * n << std::endl; abort(); }
"""
    result = await polyglot.run(Execution(code=code, language="cpp", stdin="21", compile_timeout=60))
    assert (result.stdout, result.return_code, result.signal) == ("42\n", 134, 6)
    spin = await polyglot.run(Execution(code="int main() { for (;;); }", language="cpp", timeout=1, compile_timeout=60))
    assert spin.compiled
    assert spin.timed_out
