# ruff: noqa: ASYNC220, ASYNC221, ASYNC251
"""A package that misbehaves: it prints, forks, exits and dies when its steps say so."""

import asyncio
import ctypes
import os
import subprocess
import sys
import time

print("a library that prints when it is imported")


class Worker:
    def __init__(self, greeting="hello", fails=False):
        if fails:
            raise RuntimeError("no such game")
        self.greeting = greeting
        self.totals = {}

    def rows(self, count):
        for number in range(count):
            yield {"id": str(number), "number": number}

    def start(self, episode, arguments):
        print("starting", episode)
        self.totals[episode] = arguments.get("from", 0)
        return {"greeting": self.greeting, "pid": os.getpid(), "open": len(self.totals)}

    async def step(self, episode, arguments):
        what = arguments.get("do", "add")
        if what == "print":
            os.write(1, b"not JSON\n" * 20_000)
            sys.stderr.write("nor this\n")
            subprocess.run(["echo", "nor that"], check=True)
        elif what == "fork":
            os.fork()  # the child comes back, too
        elif what == "exit":
            sys.exit(3)
        elif what == "end":
            os._exit(4)
        elif what == "crash":
            print("the last words")
            ctypes.string_at(0)
        elif what == "raise":
            raise KeyError("piece")
        elif what == "hang":
            time.sleep(100)
        elif what == "sleep":
            await asyncio.sleep(arguments["seconds"])
        elif what == "daemon":
            return subprocess.Popen(["sleep", "100"], start_new_session=arguments.get("leaves", False)).pid
        elif what == "unserializable":
            return object()
        elif what == "read":
            return sys.stdin.read()
        self.totals[episode] += arguments.get("add", 1)
        return self.totals[episode]

    def close(self, episode):
        del self.totals[episode]
