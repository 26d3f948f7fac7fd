"""Operations that boxes of every provider support."""

import asyncio
import os
import time
from dataclasses import replace

import pytest

from agentloop import boxes
from agentloop.boxes import BoxError, BoxLostError, Image
from agentloop.boxes.interface.box import ProgramEndedError
from agentloop.errors import UserError
from tests.boxes.processes import running

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.slow]


async def test_a_command_has_output_errors_and_an_exit_status(box):
    result = await box.exec("echo out; echo err >&2; exit 3")
    assert (result.stdout, result.stderr, result.return_code) == ("out\n", "err\n", 3)
    assert not result.timed_out


async def test_a_list_is_run_without_a_shell(box):
    assert (await box.exec(["echo", "$HOME", "a b"])).stdout == "$HOME a b\n"


async def test_a_signal_is_an_exit_status(box):
    assert (await box.exec("kill -9 $$")).return_code == 137


async def test_a_program_that_does_not_exist_is_reported_as_shells_do(box):
    result = await box.exec(["no-such-program"])
    assert (result.return_code, result.stderr) == (127, "no-such-program: not found\n")


async def test_a_directory_that_does_not_exist_is_reported(box):
    result = await box.exec("true", cwd="/no/such")
    assert (result.return_code, result.stderr) == (126, "No such file or directory: /no/such\n")


async def test_files_last_from_command_to_command(box):
    await box.exec("echo text > /srv/file")
    assert (await box.exec("cat /srv/file")).stdout == "text\n"


async def test_the_image_is_never_written_to(box, tree):
    await box.exec("echo changed > /etc/passwd; rm /bin/ls; echo new > /new")
    assert (tree / "etc/passwd").read_text().startswith("root:")
    assert (tree / "bin/ls").is_symlink()
    assert not (tree / "new").exists()


async def test_boxes_share_nothing(provider, spec, box):
    await box.exec("echo mine > /srv/file; sleep 1000 &")
    other = await provider.start(spec)
    try:
        assert (await other.exec("ls /srv; ps")).stdout.count("sleep") == 0
        assert (await other.exec("ls /srv")).stdout == ""
        assert other.id != box.id
        assert other.generation != box.generation
    finally:
        await other.stop()


async def test_the_working_directory_is_made(provider, spec):
    box = await provider.start(replace(spec, workdir="/made/for/this"))
    try:
        assert (await box.exec("pwd; stat -c '%U %a' .")).stdout == "/made/for/this\nroot 755\n"
    finally:
        await box.stop()


async def test_variables_come_from_the_spec_and_the_call(provider, spec):
    box = await provider.start(replace(spec, env={"A": "spec", "B": "spec"}, workdir="/srv"))
    try:
        assert (await box.exec("echo $A $B $PWD", env={"B": "call"})).stdout == "spec call /srv\n"
        assert (await box.exec("env", env={"A": "\N{EURO SIGN} two\nlines"})).stdout.count("two\nlines") == 1
    finally:
        await box.stop()


@pytest.mark.parametrize("variables", [{"A": 5}, {"A=B": "c"}, {"A": "b\0c"}])
async def test_variables_that_cannot_be_set_are_refused(box, variables):
    for run in (box.exec, box.spawn):
        with pytest.raises(UserError, match=r"^The variable 'A"):
            await run("true", env=variables)


@pytest.mark.parametrize(
    ("user", "shown"),
    [
        ("root", "0 0 0 /root"),
        ("worker", "1000 1000 1000 2000 /home/worker"),
        ("1000", "1000 1000 1000 2000 /home/worker"),
        ("worker:tools", "1000 2000 2000 /home/worker"),
        ("4321:77", "4321 77 77 /"),
    ],
)
async def test_commands_run_as_any_user(box, user, shown):
    result = await box.exec("echo $(id -u) $(id -g) $(id -G) $HOME", user=user)
    assert sorted(result.stdout.split()) == sorted(shown.split())


async def test_an_unknown_user_is_an_error(box):
    with pytest.raises(BoxError, match="The box has no user 'nobody-here'"):
        await box.exec("true", user="nobody-here")


async def test_input_reaches_the_command(box):
    assert (await box.exec("wc -c", stdin=b"x" * 300_000)).stdout.strip() == "300000"
    assert (await box.exec("cat")).stdout == ""


async def test_a_command_may_be_longer_than_a_message(box):
    text = "x" * 100_000
    assert (await box.exec(f"echo {text} | wc -c")).stdout.strip() == "100001"


async def test_output_is_cut_at_its_limit_and_the_command_goes_on(box):
    result = await box.exec("yes | head -c 3000000; echo end > /srv/end", output_bytes=1000)
    assert len(result.stdout) == 1000
    assert result.output_truncated
    assert (await box.exec("cat /srv/end")).stdout == "end\n"


async def test_output_can_be_followed_while_it_comes(box):
    pieces = asyncio.Queue()
    code = "echo a; until [ -e /srv/go ]; do sleep 0.05; done; echo b >&2; sleep 4715"
    call = asyncio.ensure_future(box.exec(code, on_output=lambda *piece: pieces.put_nowait(piece)))
    assert await pieces.get() == ("stdout", b"a\n")
    assert pieces.empty()
    await box.exec("touch /srv/go")
    assert await pieces.get() == ("stderr", b"b\n")
    assert not call.done()
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call


async def test_a_time_limit_kills_the_command_and_what_it_has_started(box):
    start = time.monotonic()
    code = "(setsid sh -c 'sleep 4711 & sleep 4712') & setsid sleep 4713 & sleep 4714"
    result = await box.exec(code, timeout=0.5)
    assert (result.timed_out, result.return_code) == (True, None)
    assert time.monotonic() - start < 10
    assert "471" not in (await box.exec("ps")).stdout


async def test_a_cancelled_call_kills_its_command(box):
    call = asyncio.ensure_future(box.exec("sleep 4721"))
    await asyncio.sleep(0.3)
    assert "4721" in (await box.exec("ps")).stdout
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    await asyncio.sleep(0.3)
    assert "4721" not in (await box.exec("ps")).stdout


async def test_processes_that_outlive_a_command_continue(box):
    result = await box.exec("sleep 4731 & echo started")
    assert result.stdout == "started\n"
    assert result.seconds < 10
    assert "4731" in (await box.exec("ps")).stdout


async def test_all_processes_can_be_killed(box):
    call = asyncio.ensure_future(box.exec("sleep 4741"))
    await box.exec("setsid sleep 4742 & sleep 4743 &", user="worker")
    await box.kill_processes()
    assert (await call).return_code == 137
    assert "474" not in (await box.exec("ps")).stdout


async def test_files_and_directories_are_copied_in(box, tmp_path):
    (tmp_path / "in/deep").mkdir(parents=True)
    (tmp_path / "in/deep/program").write_text("#!/bin/sh\necho ran\n")
    (tmp_path / "in/deep/program").chmod(0o755)
    (tmp_path / "in/link").symlink_to("deep/program")
    await box.upload(tmp_path / "in", "/opt/new/place")
    assert (await box.exec("/opt/new/place/deep/program; readlink /opt/new/place/link")).stdout == "ran\ndeep/program\n"
    assert (await box.exec("stat -c '%u %g %a' /opt/new/place/deep/program")).stdout == "0 0 755\n"
    await box.upload(tmp_path / "in/deep/program", "/opt/other-name")
    assert (await box.exec("/opt/other-name")).stdout == "ran\n"


async def test_copies_replace_links_instead_of_following_them(box, tmp_path):
    (tmp_path / "file").write_text("new")
    await box.exec("echo old > /srv/kept; ln -s /srv/kept /srv/link")
    await box.upload(tmp_path / "file", "/srv/link")
    assert (await box.exec("cat /srv/link /srv/kept")).stdout == "newold\n"


async def test_files_and_directories_are_copied_out_without_links(box, tmp_path):
    await box.exec("mkdir -p /srv/d/e; cd /srv/d; echo 1 > a; ln a e/hard; ln -s /etc/passwd l; mkfifo p")
    await box.download("/srv/d", tmp_path / "out")
    names = sorted(str(path.relative_to(tmp_path / "out")) for path in (tmp_path / "out").rglob("*"))
    assert names == ["a", "e", "e/hard"]
    assert (tmp_path / "out/e/hard").read_text() == "1\n"
    await box.download("/srv/d/a", tmp_path / "single/name")
    assert (tmp_path / "single/name").read_text() == "1\n"


async def test_missing_or_too_large_files_are_not_copied_out(box, tmp_path):
    with pytest.raises(BoxError, match="/no/such cannot be read from the box"):
        await box.download("/no/such", tmp_path / "out")
    await box.exec("head -c 20000 /dev/zero > /srv/large")
    with pytest.raises(BoxError, match="/srv/large of the box is larger than 10000 bytes"):
        await box.download("/srv/large", tmp_path / "out", max_bytes=10_000)
    await box.exec("truncate -s 50M /srv/sparse")  # takes no space in the box
    with pytest.raises(BoxError, match="/srv/sparse of the box is larger than 1000000 bytes"):
        await box.download("/srv/sparse", tmp_path / "out", max_bytes=1_000_000)
    await box.download("/etc/passwd", tmp_path / "passwd")  # the rest of the archive holds up nothing


async def test_a_program_can_be_written_to_while_it_runs(box):
    process = await box.spawn(["sh"])
    await process.write(b"X=1; echo $X\n")
    assert await process.read() == b"1\n"
    await process.write(b"X=2; echo $X >&2\n")
    assert await process.read() == b"2\n"
    await process.write(b"exit 4\n")
    assert await process.wait() == 4
    assert await process.read() == b""
    with pytest.raises(ProgramEndedError, match="has ended"):
        await process.write(b"more\n")
    await process.kill()


async def test_a_program_can_have_a_terminal(box):
    process = await box.spawn(["sh", "-c", "read line; tty; stty size; cat"], tty=True)
    await process.write(b"first\ntyped\n")
    output = b""
    while output.count(b"typed") < 2:
        piece = await process.read()
        assert piece, "the program has ended"
        output += piece
    assert b"/dev/pts/0\r\n40 120\r\n" in output
    await process.close_stdin()
    assert await process.wait() == 0
    await process.kill()


@pytest.mark.parametrize("tty", [False, True])
async def test_children_of_a_shell_can_be_interrupted_and_the_shell_continues(box, tty):
    shell = await box.spawn(["sh", "-i"] if tty else ["sh"], tty=tty)
    await shell.write(b"sleep 4751\n")
    while "sleep 4751" not in (await box.exec("ps")).stdout:  # noqa: ASYNC110 - nothing tells
        await asyncio.sleep(0.05)
    await shell.interrupt()
    await shell.write(b"echo still $((40 + 2))\n")
    output = b""
    while b"still 42" not in output:
        piece = await shell.read()
        assert piece, "the shell has ended"
        output += piece
    assert "4751" not in (await box.exec("ps")).stdout
    await shell.kill()


async def test_a_stopped_box_is_lost(provider, spec):
    box = await provider.start(spec)
    call = asyncio.ensure_future(box.exec("sleep 4761"))
    await asyncio.sleep(0.3)
    await box.stop()
    await box.stop()
    with pytest.raises(BoxLostError, match=f"The box {box.id} has ended"):
        await call
    with pytest.raises(BoxLostError):
        await box.exec("true")
    assert running("sleep 4761") == []


async def test_processes_are_limited_and_the_box_goes_on(box):
    result = await box.exec("f() { f | f & }; f; sleep 1", timeout=3)
    assert "can't fork" in result.stderr or result.timed_out
    await box.kill_processes()
    assert (await box.exec("echo ok")).stdout == "ok\n"


async def test_a_box_has_no_network(box):
    interfaces = (await box.exec("tail -n +3 /proc/net/dev | cut -d : -f 1")).stdout.split()
    assert interfaces == ["lo"]
    assert (await box.exec("nc -w 1 8.8.8.8 53")).return_code != 0


async def test_a_copy_has_the_files_and_none_of_the_processes(box):
    await box.exec("mkdir d; echo kept > d/file; chown -R worker:2000 d; chmod 4711 d/file; ln d/file hard", cwd="/srv")
    await box.exec("ln -s /no/such /srv/link; rm /bin/awk; rm -r /home; mkdir /home; touch /home/new; sleep 4771 &")
    copy = await box.fork()
    try:
        for each in (box, copy):
            found = await each.exec("cat /srv/d/file; stat -c '%a %U %g %h' /srv/hard; readlink /srv/link; ls /home")
            assert found.stdout == "kept\n4711 worker 2000 2\n/no/such\nnew\n"
            assert (await each.exec("test -e /bin/awk")).return_code == 1
        assert "4771" not in (await copy.exec("ps")).stdout
        assert (await copy.exec("hostname")).stdout == f"{copy.id}\n"
        await copy.exec("echo changed > /srv/d/file")
        assert (await box.exec("cat /srv/d/file")).stdout == "kept\n"
        assert copy.id != box.id
    finally:
        await copy.stop()


async def test_a_copy_is_stopped_on_its_own_and_can_be_copied(box):
    await box.exec("echo 1 > /srv/file")
    first = await box.fork()
    await first.exec("echo 2 >> /srv/file")
    second = await first.fork()
    await first.stop()
    assert (await second.exec("cat /srv/file")).stdout == "1\n2\n"
    await second.stop()
    assert (await box.exec("cat /srv/file")).stdout == "1\n"


async def test_a_box_that_has_ended_cannot_be_copied(provider, spec):
    box = await provider.start(spec)
    await box.stop()
    with pytest.raises(BoxLostError):
        await box.fork()


async def test_a_missing_image_is_one_clear_error(provider, spec, tmp_path):
    with pytest.raises(UserError, match=r"The image .*nowhere (is not a directory|does not exist): correct"):
        await provider.prepare(Image(tree=tmp_path / "nowhere"))
    with pytest.raises(UserError, match=r"The image .*nowhere\.tar (is not a file|does not exist): correct"):
        await provider.start(replace(spec, image=Image(tarball=tmp_path / "nowhere.tar")))


async def test_unknown_providers_and_options_are_refused():
    with pytest.raises(UserError, match="Did you mean 'rootfs'"):
        boxes.create("rotfs")
    with pytest.raises(UserError, match="storage_mb"):
        boxes.create("rootfs", storage=3)


async def test_processor_time_is_limited(provider, spec):
    """Two loops that want both processors get half of one together."""
    box = await provider.start(replace(spec, cpus=0.5))
    try:
        loop = "timeout 2 sh -c 'while :; do :; done'"
        found = await box.exec(f"{loop} & {loop}; wait; cat /proc/$$/stat", timeout=30)
    finally:
        await box.stop()
    user, system = map(int, found.stdout.split(") ")[-1].split()[13:15])  # of waited-for children, in ticks
    assert (user + system) / os.sysconf("SC_CLK_TCK") < 1.5, found.stdout
