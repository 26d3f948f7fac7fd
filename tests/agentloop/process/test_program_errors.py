from asyncio import CancelledError

import pytest

from agentloop.errors import UserError
from agentloop.process.program_errors import errors_end_the_program


@pytest.mark.parametrize(
    ("error", "status", "printed"),
    [(UserError("Name a [file]."), 2, "Name a [file].\n"), (KeyboardInterrupt(), 130, ""), (CancelledError(), 143, "")],
)
def test_status_and_message(error, status, printed, capsys):
    with pytest.raises(SystemExit) as ended, errors_end_the_program():
        raise error
    assert ended.value.code == status
    assert capsys.readouterr().err == printed


def test_other_errors_keep_their_traceback():
    with pytest.raises(ValueError, match="a bug"), errors_end_the_program():
        raise ValueError("a bug")
