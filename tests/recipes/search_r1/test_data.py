from agentloop.envs.datasets.dataset import load_dataset
from agentloop.envs.rewards import load_reward
from agentloop.recipes.hub_data import write_rows
from agentloop.recipes.search_r1.prepare import question_rows
from agentloop.recipes.search_r1.tiny_task import FACTS, PLANETS, fact, held_out_rows, train_rows
from agentloop.tools.search.index import LocalIndex
from agentloop.types.trajectory import Trajectory


async def test_rows_load_and_are_rewarded(tmp_path):
    raw = {"id": "test_0", "question": "who wrote hamlet", "golden_answers": ["Shakespeare", "William Shakespeare"]}
    assert write_rows(tmp_path / "train.jsonl", question_rows([raw], "nq")) == 1
    (row,) = load_dataset(str(tmp_path / "train.jsonl"))
    assert row["messages"][0]["content"].endswith("Question: who wrote hamlet?")
    reward = load_reward("search_r1")
    right = Trajectory(messages=[{"role": "assistant", "content": "<answer> william shakespeare </answer>"}])
    assert await reward(right, row) == 1.0
    wrong = Trajectory(messages=[{"role": "assistant", "content": "<answer> Marlowe </answer>"}])
    assert await reward(wrong, row) == 0.0


async def test_tiny_corpus_answers_its_questions(tmp_path):
    path = tmp_path / "planets.db"
    options = {"index": str(path), "num_rows": 60}
    trained = load_dataset("agentloop.recipes.search_r1.tiny_task:train_rows", options=options)
    held_out = list(held_out_rows(60))
    index = LocalIndex(path)
    for row in [*trained[:30], *held_out[:30]]:
        ((found,),) = await index.retrieve([row["prompt"][0]["content"].removeprefix("What is the ")], 1)
        assert found.text.endswith(f" is {row['answer']['target'][0]}.")
    planets = [{row["prompt"][0]["content"].rpartition(" ")[2] for row in rows} for rows in (trained, held_out)]
    assert not planets[0] & planets[1]


def test_wrong_fact_is_never_right_by_chance():
    assert all(len({fact(planet, name) for name in FACTS}) == len(FACTS) for planet in PLANETS)


def test_rows_are_deterministic(tmp_path):
    path = str(tmp_path / "planets.db")
    assert list(train_rows(path, 20, seed=3)) == list(train_rows(path, 20, seed=3))
    assert list(train_rows(path, 20, seed=3)) != list(train_rows(path, 20, seed=4))
