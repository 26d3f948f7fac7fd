import pytest

from agentloop.envs.datasets.dataset import load_dataset
from agentloop.errors import UserError
from agentloop.recipes.hub_data import write_rows
from agentloop.recipes.text_to_sql.prepare import task_rows

RAW = {
    "prompt": [
        {"role": "system", "content": "Use <sql>."},
        {"role": "user", "content": "CREATE TABLE t (x)\nHow many?"},
    ],
    "db_id": "shop",
    "data": "spider",
    "reward_spec": {"method": "rule", "ground_truth": "SELECT count(*) FROM t"},
}


def test_rows_get_the_system_message_and_database_path(tmp_path):
    write_rows(tmp_path / "train.jsonl", task_rows([RAW], "train"))
    (row,) = load_dataset(str(tmp_path / "train.jsonl"))
    assert [message["role"] for message in row["messages"]] == ["system", "user"]
    assert "<solution>" in row["messages"][0]["content"]
    assert "<sql>" not in row["messages"][0]["content"]
    assert row["database"] == "spider/database/shop/shop.sqlite"
    assert row["answer"] == "SELECT count(*) FROM t"


@pytest.mark.parametrize("change", [{"data": "other"}, {"prompt": [{"role": "user", "content": "Use <sql>."}]}])
def test_malformed_rows_are_rejected(change):
    with pytest.raises(UserError, match="Row 0"):
        list(task_rows([RAW | change], "train"))
