import asyncio
import threading
import time

from agentloop.trainer.workers.diagnostics import running_code, waiting_tasks


async def a_tool_that_never_answers(event):
    await event.wait()


async def an_episode(event):
    await a_tool_that_never_answers(event)


async def test_tasks_are_counted_by_the_innermost_place_where_they_wait():
    event = asyncio.Event()
    tasks = [asyncio.create_task(an_episode(event)) for _ in range(3)]
    await asyncio.sleep(0)
    words = waiting_tasks(asyncio.get_running_loop())
    assert "3 in a_tool_that_never_answers (workers/test_diagnostics.py:" in words
    event.set()
    await asyncio.gather(*tasks)


def test_the_code_of_a_thread_is_named_from_outside():
    stop, ready = threading.Event(), threading.Event()

    def counts_forever():
        ready.set()
        while not stop.is_set():
            time.sleep(0.01)

    thread = threading.Thread(target=counts_forever)
    thread.start()
    ready.wait()
    words = running_code(thread.ident)
    stop.set()
    thread.join()
    assert "workers/test_diagnostics.py:" in words
    assert "counts_forever" in words
    assert running_code(thread.ident) == "a thread that has ended"
