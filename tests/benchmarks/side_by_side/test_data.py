"""Sums of the side-by-side runs: no question is in two files, and the cold start has both kinds of tasks."""

import json

from benchmarks.side_by_side import data


def rows(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_no_sum_is_in_two_files(tmp_path, monkeypatch):
    given = tmp_path / "given"
    given.mkdir()
    for name in ("train", "held_out"):
        (given / f"{name}.jsonl").write_text('{"id": "a", "prompt": [], "answer": "1"}\n')
    (given / "sft.jsonl").write_text('{"messages": [{"role": "user", "content": "with a tool"}]}\n' * 3)
    monkeypatch.setattr("sys.argv", ["data", str(given), str(tmp_path), "--conversations", "2", "--sums", "30"])
    data.main()

    conversations = rows(tmp_path / "sft.jsonl")
    direct = [row for row in conversations if row.get("tools") == []]
    assert (len(conversations), len(direct)) == (32, 30)
    parts = [
        [row["prompt"][-1]["content"] for row in rows(tmp_path / "sums" / f"{n}.jsonl")] for n in ("train", "held_out")
    ]
    parts.append([row["messages"][1]["content"] for row in direct])
    questions = [question for part in parts for question in part]
    assert [len(part) for part in parts] == [7755, 215, 30]
    assert len(set(questions)) == 8000


def test_the_answer_is_the_sum():
    for question, answer in data.sums(3):
        first, second = map(int, question.removeprefix("What is ").removesuffix("?").split(" + "))
        assert int(answer) == first + second
