"""An error of `create` names options without their values, which may be secrets."""

import pytest

from agentloop.engines import create
from agentloop.errors import UserError


def test_an_error_does_not_show_the_values_of_options():
    with pytest.raises(UserError, match=r"does not take the options headers: .* missing 1 required .*'model'") as error:
        create("openai", headers={"Authorization": "Bearer sk-123"})
    assert "sk-123" not in str(error.value)
