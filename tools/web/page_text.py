"""Extract title and readable text from the bytes of a page. As a script, it answers requests on stdin.

Every HTML parser is slow for some pages. Some take hours in C code, which cannot be interrupted in a thread. So
`Fetcher` runs this script in processes that it can kill.
"""

from __future__ import annotations

import base64
import codecs
import json
import re
import resource
import sys

_CHARSET = re.compile(r"charset\s*=\s*(?:[\"']\s*)?([\w.:-]+)", re.IGNORECASE)
_DECLARATION = re.compile(
    r"<meta\s[^>]*?\bcharset\s*=\s*[\"']?\s*([\w.:-]+)|<\?xml\s[^>]*?\bencoding\s*=\s*[\"']\s*([\w.:-]+)", re.IGNORECASE
)
_MARKS = {codecs.BOM_UTF8: "utf-8-sig", codecs.BOM_UTF16_LE: "utf-16", codecs.BOM_UTF16_BE: "utf-16"}
_AS_IN_BROWSERS = {
    "ascii": "cp1252",
    "iso8859-1": "cp1252",
    "iso8859-9": "cp1254",
    "iso8859-11": "cp874",
    "tis-620": "cp874",
    "gb2312": "gb18030",
    "gbk": "gb18030",
    "shift_jis": "cp932",
    "euc_kr": "cp949",
    "big5": "big5hkscs",
}
"""Codecs that contain the declared one. Pages use their additional characters: https://encoding.spec.whatwg.org/"""
_NOT_OF_PAGES = frozenset({"idna", "punycode", "raw-unicode-escape", "undefined", "unicode-escape", "utf-7"})
_DECLARATION_BYTES = 2048
"""Bytes within which HTML must declare its charset: https://html.spec.whatwg.org/#determining-the-character-encoding"""
_DATA_BYTES = 1 << 30


def page_text(body: bytes, content_type: str, url: str) -> tuple[str, str]:
    """Return (title, text). Text that is not HTML is returned unchanged, without a title.

    The text of HTML is its main content without navigation, or the whole text if no main content is found.
    """
    content = decoded(body, content_type)
    kind = content_type.partition(";")[0].strip().lower()
    if kind not in ("text/html", "application/xhtml+xml"):
        return "", content.strip()
    return _title(content), _main_text(content, url)


def decoded(body: bytes, content_type: str) -> str:
    """Decode by the byte order mark, the header, the declaration of HTML or XML, or as UTF-8.

    Invalid bytes are replaced.
    """
    for mark, name in _MARKS.items():
        if body.startswith(mark):
            return body.decode(name, errors="replace")
    declared = _CHARSET.search(content_type)
    if declared:
        return body.decode(_codec(declared[1]), errors="replace")
    is_markup = re.search("html|xml", content_type.partition(";")[0], re.IGNORECASE)
    declared = _DECLARATION.search(body[:_DECLARATION_BYTES].decode("latin-1")) if is_markup else None
    name = _codec(declared[1] or declared[2]) if declared else "utf-8"
    # A declaration that could be read as ASCII is not in UTF-16 or UTF-32.
    return body.decode("utf-8" if name.startswith(("utf-16", "utf-32")) else name, errors="replace")


def _codec(name: str) -> str:
    """Return the codec of a charset as browsers understand it, and UTF-8 for an unknown one."""
    try:
        codec = codecs.lookup(name.lower().removeprefix("x-"))
    except LookupError:
        return "utf-8"
    if not codec._is_text_encoding or codec.name in _NOT_OF_PAGES:  # rot13, base64 and others are codecs too
        return "utf-8"
    return _AS_IN_BROWSERS.get(codec.name, codec.name)


def _title(content: str) -> str:
    import trafilatura

    tree = trafilatura.load_html(content)
    return "" if tree is None else " ".join((tree.findtext(".//title") or "").split())


def _main_text(content: str, url: str) -> str:
    import trafilatura

    text = trafilatura.extract(content, url=url, include_links=False, include_tables=True, include_comments=False)
    if not text:
        text = trafilatura.html2txt(content)
    return (text or "").strip()


def main() -> None:
    """Answer lines {"body": base64, "content_type", "url"} with {"title", "text"} until stdin ends."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))  # it writes only to pipes
    resource.setrlimit(resource.RLIMIT_DATA, (_DATA_BYTES, _DATA_BYTES))
    for line in sys.stdin:
        request = json.loads(line)
        title, text = page_text(base64.b64decode(request["body"]), request["content_type"], request["url"])
        print(json.dumps({"title": title, "text": text}), flush=True)


if __name__ == "__main__":
    main()
