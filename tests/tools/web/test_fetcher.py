import asyncio
import gzip
import time
import tracemalloc
import zlib
from contextlib import suppress

import pytest

from agentloop.tools.web.addresses import PublicOnly
from agentloop.tools.web.fetcher import Fetcher, FetchError, checked_url

pytestmark = pytest.mark.slow

PAGE = b"""<html><head><title>A &amp; B</title></head><body><nav>Home About</nav><article><h1>Rain</h1>
<p>It rains in Bergen on most days of the year, as everybody who lives there will tell you.</p>
<p>Umbrellas are of little use, since the rain comes from the side; people wear coats.</p></article></body></html>"""


def respond(connection, body: bytes, *headers: str, status: str = "200 OK") -> None:
    lines = [f"HTTP/1.1 {status}", "Connection: close", *headers]
    if not any(line.lower().startswith(("content-length", "transfer-encoding")) for line in headers):
        lines.append(f"Content-Length: {len(body)}")
    connection.sendall("\r\n".join(lines).encode() + b"\r\n\r\n" + body)


def fetch(port: int, path: str = "/", **options):
    async def once():
        fetcher = Fetcher(PublicOnly([port], allowed=["127.0.0.1/32"]), workers=1, **options)
        try:
            return await fetcher.fetch(f"http://127.0.0.1:{port}{path}")
        finally:
            await fetcher.close()

    return asyncio.run(once())


def test_main_text_and_title_are_extracted(serving):
    with serving(lambda path, c: respond(c, PAGE, "Content-Type: text/html; charset=utf-8")) as port:
        page = fetch(port)
    assert page.title == "A & B"
    assert "It rains in Bergen" in page.text
    assert "Home About" not in page.text
    assert not page.truncated


def test_plain_text_is_returned_unchanged(serving):
    with serving(lambda path, c: respond(c, b'{"a": "<b>"}\n', "Content-Type: application/json")) as port:
        assert fetch(port).text == '{"a": "<b>"}'


@pytest.mark.parametrize(
    ("body", "content_type", "expected"),
    [
        ("für".encode("latin-1"), "text/plain; charset=iso-8859-1", "für"),
        ("für".encode(), "text/plain", "für"),
        ("für".encode("utf-16"), "text/plain", "für"),
        (b"\xef\xbb\xbfa", "text/plain", "a"),
        (b"a\xffb", "text/plain; charset=utf-8", "a\ufffdb"),
        (b"abc", "text/plain; charset=no-such", "abc"),
        (b"abc", "text/plain; charset=rot13", "abc"),
        (b"abc", "text/plain; charset=base64", "abc"),
        (b"abc", "text/plain; charset=idna", "abc"),
        (b"abc", "text/plain; charset=undefined", "abc"),
        ("It’s".encode("cp1252"), "text/plain; charset=iso-8859-1", "It’s"),
        ("龍镕".encode("gbk"), "text/plain; charset=gb2312", "龍镕"),
        ("①髙".encode("cp932"), "text/plain; charset=x-sjis", "①髙"),
        ("똠".encode("cp949"), "text/plain; charset=euc-kr", "똠"),
        ('<?xml version="1.0" encoding="windows-1251"?><a>мир</a>'.encode("cp1251"), "application/xml", "<a>мир</a>"),
        ("für charset=utf-16".encode(), "text/plain", "für charset=utf-16"),
        ('{"für": "<meta charset=iso-8859-1>"}'.encode(), "application/json", '{"für": "<meta charset=iso-8859-1>"}'),
        ('<script charset="gbk"></script><meta charset="utf-8"><p>für</p>'.encode(), "text/html", "für"),
        ('<meta charset="utf-16"><p>für</p>'.encode(), "text/html", "für"),
    ],
)
def test_charsets_are_decoded(body, content_type, expected, serving):
    with serving(lambda path, c: respond(c, body, f"Content-Type: {content_type}")) as port:
        assert fetch(port).text.rpartition("?>")[2] == expected


def test_redirects_are_followed_up_to_a_limit(serving):
    def answer(path, connection):
        number = int(path.strip("/") or 0)
        if number == 3:
            respond(connection, b"there", "Content-Type: text/plain")
        else:
            respond(connection, b"", f"Location: /{number + 1}", status="302 Found")

    with serving(answer) as port:
        page = fetch(port)
        assert (page.url, page.text) == (f"http://127.0.0.1:{port}/3", "there")
        with pytest.raises(FetchError, match="more than 2 redirects"):
            fetch(port, max_redirects=2)


def test_a_redirect_may_be_written_in_utf_8(serving):
    def answer(path, connection):
        if path == "/":
            respond(connection, b"", "Location: /für", status="302 Found")
        else:
            respond(connection, path.encode(), "Content-Type: text/plain")

    with serving(answer) as port:
        assert fetch(port).text == "/f%C3%BCr"


@pytest.mark.parametrize(
    "target",
    [
        "http://10.0.0.1/",
        "http://169.254.169.254/latest/meta-data",
        "http://localhost:PORT/",
        "http://[::1]/",
        "http://127.0.0.1:22/",
        "file:///etc/passwd",
        "gopher://127.0.0.1/",
        "//192.168.0.1/",
        "http://user@127.0.0.1:PORT/",
    ],
)
def test_redirect_to_a_private_address_is_rejected(target, serving):
    network_of = {}

    def answer(path, connection):
        respond(connection, b"", "Location: " + target.replace("PORT", str(network_of["port"])), status="302 Found")

    async def names(host: str, port: int) -> list[str]:
        return [{"localhost": "127.0.0.2"}.get(host, host)]

    with serving(answer) as port:
        network_of["port"] = port
        network = PublicOnly([port, 80], names, allowed=["127.0.0.1/32"])
        with pytest.raises(FetchError, match=r"public internet|only http|user name|port"):
            asyncio.run(Fetcher(network).fetch(f"http://127.0.0.1:{port}/"))


def test_endless_page_is_truncated(serving):
    def answer(path, connection):
        connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nConnection: close\r\n\r\n")
        while True:
            connection.sendall(b"x" * 65536)

    with serving(answer) as port:
        page = fetch(port, max_bytes=100_000)
    assert (len(page.text), page.truncated) == (100_000, True)


@pytest.mark.parametrize("pause", [0.05, 30])
def test_slow_page_times_out(pause, serving):
    def answer(path, connection):
        connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nConnection: close\r\n\r\n")
        for _ in range(600):
            time.sleep(pause)
            connection.sendall(b"x")

    with serving(answer) as port:
        started = time.monotonic()
        with pytest.raises(FetchError, match="longer than"):
            fetch(port, seconds=0.5)
        assert time.monotonic() - started < 5


def test_gzip_bomb_is_truncated_before_expansion(serving):
    bomb = gzip.compress(bytes(300_000_000), 9)
    headers = ("Content-Type: text/plain", "Content-Encoding: gzip")
    with serving(lambda path, c: respond(c, bomb, *headers)) as port:
        tracemalloc.start()
        page = fetch(port, max_bytes=1_000_000)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    assert page.truncated
    assert peak < 24_000_000


def test_gzip_is_decoded(serving):
    headers = ("Content-Type: text/plain", "Content-Encoding: gzip")
    with serving(lambda path, c: respond(c, gzip.compress(b"small" * 50_000), *headers)) as port:
        assert fetch(port).text == "small" * 50_000


@pytest.mark.parametrize("ending", [gzip.compress(b"second"), b"\0" * 100])
def test_all_members_of_a_gzip_file_are_read(ending, serving):
    headers = ("Content-Type: text/plain", "Content-Encoding: GZIP")
    with serving(lambda path, c: respond(c, gzip.compress(b"first ") + ending, *headers)) as port:
        assert fetch(port).text == ("first second" if ending[0] else "first")


@pytest.mark.parametrize(
    ("body", "headers", "status", "message"),
    [
        (b"", [], "404 Not Found", "HTTP 404"),
        (b"", [], "500 Oops", "HTTP 500"),
        (b"\x89PNG", ["Content-Type: image/png"], "200 OK", "not text but image/png"),
        (b"x", ["Content-Type: text/plain", "Content-Encoding: br"], "200 OK", "encoded as br"),
        (b"x", ["Content-Type: text/plain", "Content-Encoding: gzip, gzip"], "200 OK", "encoded as gzip, gzip"),
        (b"no gzip", ["Content-Type: text/plain", "Content-Encoding: gzip"], "200 OK", "not valid gzip"),
        (b"short", ["Content-Type: text/plain", "Content-Length: 500"], "200 OK", "cannot be read"),
        (zlib.compress(b"x"), ["Content-Length: x"], "200 OK", "cannot be read"),
    ],
)
def test_unreadable_pages_are_reported(body, headers, status, message, serving):
    with (
        serving(lambda path, c: respond(c, body, *headers, status=status)) as port,
        pytest.raises(FetchError, match=message),
    ):
        fetch(port)


def test_non_http_response_is_reported(serving):
    with (
        serving(lambda path, c: c.sendall(b"SSH-2.0-x\r\n")) as port,
        pytest.raises(FetchError, match="cannot be read"),
    ):
        fetch(port)
    with pytest.raises(FetchError, match="cannot be read"):
        fetch(1)


@pytest.mark.parametrize(
    "url",
    [
        *("", "x", "http://", "http:///path", "ftp://a.b/", "file:///etc/passwd", "javascript:alert(1)", "data:,x"),
        *("http://u:p@a.b/", "http://a.b\\@c.d/", "http://a.b:99999/", "http://[::1/", "http://a b/", "http://\0/"),
        "http://" + "a" * 70 + ".com/",
    ],
)
def test_invalid_urls_are_rejected(url):
    with pytest.raises(FetchError):
        checked_url(url)


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("HTTP://Example.COM", "http://example.com/"),
        ("https://bücher.example/ä?q=ö#x", "https://xn--bcher-kva.example/%C3%A4?q=%C3%B6"),
        ("http://[2606:4700::1111]:80/a%20b", "http://[2606:4700::1111]:80/a%20b"),
        (" http://a.b/?x=1 ", "http://a.b/?x=1"),
    ],
)
def test_urls_are_normalized(url, expected):
    assert checked_url(url) == expected


@pytest.mark.parametrize(
    ("body", "content_type"),
    [
        (b"<p>" + b"<title>" * 20_000, "text/html"),
        (b"<title" * 30_000, "text/html"),
        (b"<b><i>" * 30_000, "text/html"),
        (b"x", "text/html; charset=" + " " * 60_000 + ";"),
        (b"x-" * 100_000, "text/plain; charset=punycode"),
    ],
)
async def test_hostile_page_does_not_stop_the_event_loop(body, content_type, serving):
    lags = []

    async def watch():
        while True:
            started = time.monotonic()
            await asyncio.sleep(0.01)
            lags.append(time.monotonic() - started)

    with serving(lambda path, c: respond(c, body, f"Content-Type: {content_type}")) as port:
        fetcher = Fetcher(PublicOnly([port], allowed=["127.0.0.1/32"]), workers=1)
        watching = asyncio.create_task(watch())
        started = time.thread_time()
        with suppress(FetchError):  # such a page need not be readable
            await fetcher.fetch(f"http://127.0.0.1:{port}/")
        watching.cancel()
        await fetcher.close()
    assert time.thread_time() - started < 1.0  # a quadratic pattern in this process takes ten times as much
    assert max(lags) < 2.0
