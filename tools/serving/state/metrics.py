"""Metrics of the daemon for Prometheus.

https://prometheus.io/docs/practices/naming/
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from prometheus_client import CollectorRegistry, Counter, Histogram, ProcessCollector, generate_latest
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from agentloop.sandboxes.interface.sandbox import ExecutionResult, Load

_QUEUE_SECONDS = (0.0001, 0.001, 0.005, 0.02, 0.1, 0.5, 2.0, 10.0, 30.0)
_EXECUTION_SECONDS = (0.001, 0.002, 0.005, 0.01, 0.05, 0.2, 1.0, 5.0, 30.0, 120.0)
_PREFIX = "agentloop_tools"


class Metrics:
    """The metrics of one daemon, in a separate registry."""

    def __init__(self, load: Callable[[], Load], tool_sessions: Callable[[], int]) -> None:
        self._registry = CollectorRegistry()
        ProcessCollector(registry=self._registry)
        self._registry.register(_Gauges(load, tool_sessions))

        def counter(name: str, text: str, *labels: str) -> Counter:
            return Counter(f"{_PREFIX}_{name}", text, labels, registry=self._registry)

        def histogram(name: str, text: str, buckets: tuple[float, ...]) -> Histogram:
            return Histogram(f"{_PREFIX}_{name}", text, buckets=buckets, registry=self._registry)

        self._requests = counter("requests", "HTTP requests answered.", "route", "status")
        self._executions = counter("executions", "Executions and cells, by outcome.", "outcome")
        self._queue = histogram("queue_seconds", "Time that an execution waited for a slot.", _QUEUE_SECONDS)
        self._seconds = histogram("execution_seconds", "Time that the code of an execution ran.", _EXECUTION_SECONDS)

    def count_request(self, route: str, status: int) -> None:
        self._requests.labels(route, str(status)).inc()

    def count_execution(self, outcome: str) -> None:
        self._executions.labels(outcome).inc()

    def observe(self, result: ExecutionResult) -> None:
        """Record the times of an execution."""
        self._queue.observe(result.queue_seconds)
        self._seconds.observe(result.seconds)

    def text(self) -> bytes:
        return generate_latest(self._registry)


class _Gauges(Collector):
    """Gauges that are read when Prometheus collects them."""

    def __init__(self, load: Callable[[], Load], tool_sessions: Callable[[], int]) -> None:
        self._load, self._tool_sessions = load, tool_sessions

    def collect(self) -> Iterable[Metric]:
        load = self._load()
        yield GaugeMetricFamily(f"{_PREFIX}_slots", "Executions that can run at once.", load.slots)
        yield GaugeMetricFamily(f"{_PREFIX}_busy", "Executions that run.", load.busy)
        yield GaugeMetricFamily(f"{_PREFIX}_waiting", "Executions that wait for a slot.", load.waiting)
        yield GaugeMetricFamily(f"{_PREFIX}_sessions", "Sessions that are open.", load.sessions)
        yield GaugeMetricFamily(f"{_PREFIX}_tool_sessions", "Tool sessions that are open.", self._tool_sessions())

    def describe(self) -> Iterable[Metric]:
        return ()
