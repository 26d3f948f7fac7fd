import pytest

from agentloop.envs.datasets.dataset import load_dataset
from agentloop.errors import UserError
from agentloop.recipes.deepeyes.task import SYSTEM, rows, with_prompt


def test_rows_keep_their_columns_and_get_the_prompt(tmp_path):
    import pyarrow
    import pyarrow.parquet

    row = {
        "prompt": [{"role": "system", "content": "Old."}, {"role": "user", "content": "What colour?"}],
        "reward_model": {"ground_truth": "red", "style": "model"},
        "extra_info": {"index": "7"},
    }
    path = tmp_path / "data.parquet"
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist([row]), path)
    (read,) = load_dataset("agentloop.recipes.deepeyes.task:rows", options={"path": str(path)})
    assert [message["content"] for message in read["messages"]] == [SYSTEM, "What colour?"]
    assert (read["answer"], read["id"]) == ("red", "7")


def test_missing_file_and_missing_user_turn_raise(tmp_path):
    with pytest.raises(UserError, match="README"):
        list(rows(str(tmp_path / "none.parquet")))
    with pytest.raises(UserError, match="no user turn"):
        with_prompt({"prompt": [{"role": "system", "content": "Old."}]})
