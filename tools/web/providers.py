"""Web search providers by name. Each builds its request and parses its answer."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from agentloop.errors import UserError, nearest


@dataclass(slots=True, frozen=True)
class Hit:
    """One search result."""

    title: str
    url: str
    snippet: str


@dataclass(slots=True, frozen=True)
class Provider:
    """One provider.

    `request(query, count, key)` returns the arguments of `httpx.request` besides the URL. `hits(answer)` reads the
    parsed JSON and raises `KeyError` or `TypeError` if its structure is unexpected.
    """

    name: str
    method: str
    url: str
    """Address of the provider; empty if users run their own."""
    needs_key: bool
    request: Callable[[str, int, str], dict[str, Any]]
    hits: Callable[[Any], list[Hit]]


def _items(items: Any, title: str, url: str, snippet: str) -> list[Hit]:
    return [Hit(str(item.get(title) or ""), str(item[url]), str(item.get(snippet) or "")) for item in items]


_PROVIDERS = (
    Provider(
        "serper",
        "POST",
        "https://google.serper.dev/search",
        True,
        lambda query, count, key: {"json": {"q": query, "num": count}, "headers": {"X-API-KEY": key}},
        lambda answer: _items(answer.get("organic", ()), "title", "link", "snippet"),
    ),
    Provider(
        "brave",
        "GET",
        "https://api.search.brave.com/res/v1/web/search",
        True,
        lambda query, count, key: {"params": {"q": query, "count": count}, "headers": {"X-Subscription-Token": key}},
        lambda answer: _items(answer.get("web", {}).get("results", ()), "title", "url", "description"),
    ),
    Provider(
        "tavily",
        "POST",
        "https://api.tavily.com/search",
        True,
        lambda query, count, key: {
            "json": {"query": query, "max_results": count},
            "headers": {"Authorization": f"Bearer {key}"},
        },
        lambda answer: _items(answer["results"], "title", "url", "content"),
    ),
    Provider(
        "searxng",
        "GET",
        "",
        False,
        lambda query, count, key: {"params": {"q": query, "format": "json"}},
        lambda answer: _items(answer["results"], "title", "url", "content"),
    ),
)


def provider(name: str) -> Provider:
    """Return a provider by name. Raises `UserError`."""
    known = {each.name: each for each in _PROVIDERS}
    if name not in known:
        raise UserError(f"There is no web search provider {name!r}.{nearest(name, known)} Known: {', '.join(known)}.")
    return known[name]
