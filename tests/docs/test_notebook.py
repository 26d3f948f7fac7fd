"""Run the notebook of the docs in a real kernel, and interrupt a run in one."""

import asyncio
import re
import time
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

pytestmark = pytest.mark.slow

NOTEBOOK = Path(__file__).parents[2] / "docs" / "notebooks" / "first_run.ipynb"


def in_kernel(notebook, folder):
    resources = {"metadata": {"path": str(folder)}}
    return NotebookClient(notebook, timeout=600, kernel_name="python3", resources=resources)


def wait_for(file):
    while not file.exists():
        time.sleep(0.2)


def texts(cell):
    """Return what a cell shows as text."""
    return [output.get("text") or output.get("data", {}).get("text/plain", "") for output in cell.outputs]


def test_the_notebook_trains_with_a_tool_and_a_reward_of_its_own(tmp_path):
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    for number, cell in reversed(list(enumerate(notebook.cells))):
        if "agentloop.rollout(" in cell.source and cell.cell_type == "code":
            notebook.cells.insert(number, nbformat.v4.new_code_cell(cell.source))  # a reader runs cells again
    in_kernel(notebook, tmp_path).execute()
    shown = {cell["id"]: texts(cell) for cell in notebook.cells if cell.cell_type == "code"}
    _, compared = (text for outputs in shown.values() for text in outputs if text.startswith("mean reward:"))
    before, after = map(float, re.findall(r"\d\.\d+", compared))
    assert after > before
    (training,) = (outputs for outputs in shown.values() if any("model saved in" in text for text in outputs))
    tables = [text for text in training if "eval" in text or "tool calls" in text]
    assert len(tables) == 1, "the progress is one output, updated in place"
    assert "10/10" in tables[0]


def test_an_interrupted_kernel_ends_the_run_and_says_how_to_continue(tmp_path):
    source = """
import agentloop
run = agentloop.train("tiny", run={"folder": "run", "steps": 100000, "save_every": 1, "loggers": []}, eval={"every": 0},
                      algorithm={"groups_per_step": 2})
"""
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(source)])
    client = in_kernel(notebook, tmp_path)

    async def interrupt():
        await asyncio.to_thread(wait_for, tmp_path / "run" / "metrics.jsonl")
        while True:  # a kernel on a busy machine may miss one
            await client.km.interrupt_kernel()
            await asyncio.sleep(20)

    async def execute():
        async with client.async_setup_kernel():
            interrupting = asyncio.create_task(interrupt())
            try:
                await client.async_execute_cell(notebook.cells[0], 0)
            finally:
                interrupting.cancel()

    with pytest.raises(Exception, match="KeyboardInterrupt"):
        asyncio.run(execute())
    assert any(
        re.match(
            r"stopped after step \d+(?:, [^;]+)?; continue with: agentloop.train\('run', run=\{'folder': 'run'\}\)",
            text,
        )
        for text in texts(notebook.cells[0])
    )
