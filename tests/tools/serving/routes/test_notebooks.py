"""/run_jupyter with real sessions."""

import base64

import pytest

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.slow]


async def run(daemon, cells, **fields):
    response = await daemon.post("/run_jupyter", json={"cells": cells, **fields})
    assert response.status_code == 200, response.text
    return response.json()


async def test_cells_share_state(daemon):
    body = await run(daemon, ["x = 6", "print(x)\nx * 7"])
    assert (body["status"], body["driver"]["status"]) == ("Success", "Finished")
    assert [cell["stdout"] for cell in body["cells"]] == ["", "6\n"]
    assert body["cells"][1]["display"] == [{"text/plain": "42"}]
    assert body["cells"][1]["error"] == []


async def test_requests_share_no_state(daemon):
    await run(daemon, ["x = 1; open('/tmp/left', 'w').write('x')"])
    body = await run(daemon, ["import os; print('x' in globals(), os.path.exists('/tmp/left'))"])
    assert body["cells"][0]["stdout"] == "False False\n"
    assert daemon.daemon.sandbox.load().sessions == 0


async def test_exception_does_not_stop_later_cells(daemon):
    body = await run(daemon, ["1/0", "print('on')"])
    assert body["status"] == "Success"
    (error,) = body["cells"][0]["error"]
    assert error["ename"] == "ZeroDivisionError"
    assert error["evalue"] == "division by zero"
    assert any("ZeroDivisionError" in line for line in error["traceback"])
    assert body["cells"][1]["stdout"] == "on\n"


async def test_total_timeout_keeps_finished_cells(daemon):
    body = await run(daemon, ["print(1)", "import time; print(2); time.sleep(60)", "print(3)"], total_timeout=1)
    assert (body["status"], body["driver"]["status"]) == ("Failed", "TimeLimitExceeded")
    assert [cell["stdout"] for cell in body["cells"]] == ["1\n", "2\n"]
    assert body["cells"][1]["timed_out"]


async def test_cell_timeout_ends_the_cell(daemon):
    body = await run(daemon, ["x = 5\nwhile True: pass", "print(x)"], cell_timeout=0.3, total_timeout=20)
    assert body["status"] == "Failed"
    assert body["cells"][0]["timed_out"]
    assert body["cells"][1]["stdout"] == "5\n"


async def test_ended_session_skips_remaining_cells(daemon):
    body = await run(daemon, ["print(1, flush=True)", "import os; os._exit(3)", "print(2)"])
    assert body["status"] == "Failed"
    assert body["driver"]["return_code"] == 1
    assert "cell 2" in body["driver"]["stderr"]
    assert len(body["cells"]) == 2


async def test_files_are_uploaded_and_fetched(daemon):
    files = {"in.txt": base64.b64encode(b"hello").decode()}
    cells = ["text = open('in.txt').read()", "open('out.txt', 'w').write(text.upper())"]
    body = await run(daemon, cells, files=files, fetch_files=["out.txt", "missing"])
    assert body["files"] == {"out.txt": base64.b64encode(b"HELLO").decode()}


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"cells": "x"}, "cells"),
        ({"cells": []}, "cells"),
        ({"cells": [1]}, "cells.0"),
        ({"cells": ["x"], "cell_timeout": -1}, "cell_timeout"),
        ({"cells": ["x"], "total_timeout": 0}, "total_timeout"),
        ({"cells": ["x"], "kernel": "ir"}, "kernel"),
        ({"cells": ["x"], "files": {"../a": ""}}, "files"),
    ],
)
async def test_invalid_field_is_named(daemon, fields, field):
    response = await daemon.post("/run_jupyter", json=fields)
    assert response.status_code == 422
    assert ".".join(map(str, response.json()["detail"][0]["loc"][1:])) == field
