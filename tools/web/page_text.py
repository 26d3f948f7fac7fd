"""Extract title and readable text from the bytes of a page."""

from __future__ import annotations

import codecs
import html
import re

_CHARSET = re.compile(r"charset\s*=\s*[\"']?\s*([\w.:-]+)", re.IGNORECASE)
_TITLE = re.compile(r"<title[^>]*>(.*?)</title>", re.IGNORECASE | re.DOTALL)
_MARKS = {codecs.BOM_UTF8: "utf-8-sig", codecs.BOM_UTF16_LE: "utf-16", codecs.BOM_UTF16_BE: "utf-16"}
_DECLARATION_BYTES = 2048
"""Bytes in which HTML must declare its charset: https://html.spec.whatwg.org/#determining-the-character-encoding"""


def page_text(body: bytes, content_type: str, url: str) -> tuple[str, str]:
    """Return (title, text). Texts other than HTML are returned unchanged, without a title.

    The text of HTML is its main content without navigation, or the whole text if no main content is found.
    """
    content = decoded(body, content_type)
    kind = content_type.partition(";")[0].strip().lower()
    if kind not in ("text/html", "application/xhtml+xml"):
        return "", content.strip()
    match = _TITLE.search(content)
    title = " ".join(html.unescape(match[1]).split()) if match else ""
    return title, _main_text(content, url)


def decoded(body: bytes, content_type: str) -> str:
    """Decode by the byte order mark, the header, the page's declaration, or as UTF-8. Invalid bytes are replaced."""
    for mark, name in _MARKS.items():
        if body.startswith(mark):
            return body.decode(name, errors="replace")
    declared = _CHARSET.search(content_type) or _CHARSET.search(body[:_DECLARATION_BYTES].decode("latin-1"))
    name = declared[1] if declared else "utf-8"
    try:
        codec = codecs.lookup(name)
    except LookupError:
        codec = codecs.lookup("utf-8")
    if not codec._is_text_encoding:  # rot13, base64 and others are codecs too
        codec = codecs.lookup("utf-8")
    return body.decode(codec.name, errors="replace")


def _main_text(content: str, url: str) -> str:
    import trafilatura

    text = trafilatura.extract(content, url=url, include_links=False, include_tables=True, include_comments=False)
    if not text:
        text = trafilatura.html2txt(content)
    return (text or "").strip()
