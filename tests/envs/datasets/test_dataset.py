import gzip
import json
import subprocess
import sys

import pyarrow as pa
import pytest
from pyarrow import parquet

from agentloop.envs.datasets.dataset import load_conversations, load_dataset
from agentloop.errors import UserError


def write_jsonl(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


def test_jsonl_rows_in_order_with_blank_lines_skipped(tmp_path):
    path = tmp_path / "d.jsonl"
    path.write_text('{"prompt": "a"}\n\n{"prompt": "b", "answer": 2}\n')
    rows = load_dataset(str(path))
    assert [row["prompt"] for row in rows] == ["a", "b"]
    assert [row["id"] for row in rows] == ["0", "1"]
    assert rows[1]["answer"] == 2


def test_a_byte_order_mark_at_the_start_of_jsonl_is_skipped(tmp_path):
    path = tmp_path / "d.jsonl"
    path.write_text('{"prompt": "a"}\n', encoding="utf-8-sig")
    assert load_dataset(str(path))[0]["prompt"] == "a"


@pytest.mark.parametrize(
    ("name", "text"),
    [("d.jsonl", '{"prompt": "é"}\n'), ("d.json", '[{"prompt": "é"}]'), ("d.csv", "prompt\né\n")],
)
def test_text_of_another_encoding_is_named(name, text, tmp_path):
    (tmp_path / name).write_text(text, encoding="latin-1")
    with pytest.raises(UserError, match=r"it is not UTF-8 text .*Save it as UTF-8"):
        load_dataset(str(tmp_path / name))


def test_a_cut_parquet_file_is_named_with_a_fix(tmp_path):
    path = tmp_path / "d.parquet"
    parquet.write_table(pa.table({"prompt": ["a"]}), path)
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(UserError, match=r"d\.parquet cannot be read after row 0: .*[^.]\. Check that it is complete"):
        load_dataset(str(path))


def test_gzipped_jsonl_is_read(tmp_path):
    path = tmp_path / "d.jsonl.gz"
    with gzip.open(path, "wt") as file:
        file.write('{"prompt": "a"}\n')
    assert load_dataset(str(path))[0]["prompt"] == "a"


def test_limit_keeps_the_first_rows_and_stops_reading(tmp_path):
    path = tmp_path / "d.jsonl"
    path.write_text('{"prompt": "a"}\n{"prompt": "b"}\nnot json\n')
    assert len(load_dataset(str(path), limit=2)) == 2


def test_missing_file_raises(tmp_path):
    with pytest.raises(UserError, match=r"no dataset file .*nothing\.jsonl"):
        load_dataset(str(tmp_path / "nothing.jsonl"))


@pytest.mark.parametrize(
    ("value", "error"), [("9" * 5000, "a number has too many digits"), ("[" * 3000 + "]" * 3000, "nested too deeply")]
)
@pytest.mark.parametrize(("name", "form"), [("d.jsonl", "{}\n"), ("d.json", "[{}]")])
def test_json_that_python_cannot_read_is_named(tmp_path, name, form, value, error):
    path = tmp_path / name
    path.write_text(form.format(f'{{"prompt": "a", "x": {value}}}'))
    with pytest.raises(UserError, match=rf"d\.json.* cannot be read: .*{error}.* Write .* as text\."):
        load_dataset(str(path))


def test_malformed_line_is_named(tmp_path):
    path = tmp_path / "d.jsonl"
    path.write_text('{"prompt": "a"}\n\n{"prompt": "b"\n')
    with pytest.raises(UserError, match=r"d\.jsonl, line 3 is not JSON"):
        load_dataset(str(path))


@pytest.mark.parametrize("load", [load_dataset, load_conversations])
@pytest.mark.parametrize(
    ("name", "text", "where"),
    [
        ("d.jsonl", '{"prompt": "a"}\n{"prompt": "b", "answer": NaN}\n', "line 2: 'answer' has the number nan"),
        ("d.json", '[{"prompt": "b", "extra_info": {"index": [Infinity]}}]', "row 1: 'extra_info' has the number inf"),
        ("d.ndjson", '{"prompt": "b", "level": -1e999}\n', "line 1: 'level' has the number -inf"),
    ],
)
def test_numbers_that_json_does_not_have_are_refused(tmp_path, load, name, text, where):
    (tmp_path / name).write_text(text.replace("}", ', "completion": "c"}'))
    with pytest.raises(UserError, match=rf"{name}, {where}, which JSON does not allow\. Write null"):
        load(str(tmp_path / name))


@pytest.mark.parametrize(
    ("name", "text", "error"),
    [
        ("d.jsonl", '{"prompt": "a"}\n{"prompt": "b", "prompt": "c"}\n', "line 2 has the key 'prompt' twice"),
        (
            "d.jsonl",
            '{"prompt": "b", "info": [{"x": 1, "y": 2, "x": 1}]}\n',
            "line 1: 'info' has an object with the key 'x' twice",
        ),
        ("d.json", '[{"prompt": "a"}, {"answer": 1, "prompt": "b", "answer": 2}]', "row 2 has the key 'answer' twice"),
        ("d.csv", "prompt,answer,answer\na,b,c\n", "line 1 names 2 columns 'answer'"),
    ],
)
def test_a_column_that_is_there_twice_is_refused(tmp_path, name, text, error):
    (tmp_path / name).write_text(text)
    with pytest.raises(UserError, match=rf"{name}, {error}\. Remove"):
        load_dataset(str(tmp_path / name))


def test_an_answer_in_parquet_that_is_no_number_is_refused_and_null_is_none(tmp_path):
    parquet.write_table(pa.table({"prompt": ["a", "b"], "answer": [None, float("nan")]}), tmp_path / "d.parquet")
    assert "answer" not in load_dataset(str(tmp_path / "d.parquet"), limit=1)[0]
    with pytest.raises(UserError, match=r"d\.parquet, row 2: the answer is the number nan"):
        load_dataset(str(tmp_path / "d.parquet"))


def test_row_without_prompt_is_named(tmp_path):
    path = write_jsonl(tmp_path / "d.jsonl", [{"prompt": "a"}, {"question": "b"}])
    with pytest.raises(UserError, match=r"d\.jsonl, line 2: the row has neither"):
        load_dataset(path)


def test_empty_dataset_raises(tmp_path):
    with pytest.raises(UserError, match="has no rows"):
        load_dataset(write_jsonl(tmp_path / "d.jsonl", []))


def test_json_is_a_list_of_rows_or_json_lines_under_another_name(tmp_path):
    path = tmp_path / "d.json"
    rows = [{"prompt": "a"}, {"prompt": "b", "answer": 2}]
    path.write_text("\ufeff" + json.dumps(rows, indent=2))
    listed = load_dataset(str(path))
    assert [row["prompt"] for row in listed] == ["a", "b"]
    write_jsonl(path, rows)
    assert load_dataset(str(path)) == listed
    path.write_text(json.dumps([*rows, {"question": "c"}]))
    with pytest.raises(UserError, match=r"d\.json, row 3: the row has neither"):
        load_dataset(str(path))
    path.write_text(json.dumps(rows)[:-1])
    with pytest.raises(UserError, match=r"d\.json cannot be read"):
        load_dataset(str(path))


def test_csv_has_the_names_of_the_columns_in_its_first_line(tmp_path):
    path = tmp_path / "d.csv"
    path.write_text('prompt,answer\n"1,5 + 1\nis?","2,5"\nb,\n')
    assert [(row["prompt"], row["answer"]) for row in load_dataset(str(path))] == [("1,5 + 1\nis?", "2,5"), ("b", "")]
    assert len(load_dataset(str(tmp_path))) == 2
    path.write_text("prompt,answer\n1,5 + 1,3\n")
    with pytest.raises(UserError, match=r"d\.csv, row 1 does not have one value for each .* prompt, answer"):
        load_dataset(str(path))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("prompt;answer\na;b\n", r"d\.csv seems to be separated by ';': .* 'prompt;answer'\. .*sep=';'"),
        ("prompt\tanswer\na, or b\tc\n", r"d\.csv seems to be separated by tabs: .*sep='\\t'"),
    ],
)
def test_csv_with_another_separator_is_named(tmp_path, text, words):
    (tmp_path / "d.csv").write_text(text)
    with pytest.raises(UserError, match=words):
        load_dataset(str(tmp_path / "d.csv"))


def test_a_folder_may_describe_its_dataset_in_json(tmp_path):
    write_jsonl(tmp_path / "d.jsonl", [{"prompt": "a"}])
    (tmp_path / "about.json").write_text("{}")
    assert len(load_dataset(str(tmp_path))) == 1


def test_unknown_kind_raises():
    with pytest.raises(UserError, match=r"'data\.tsv' is unknown"):
        load_dataset("data.tsv")


def test_function_in_a_file_receives_the_options(tmp_path):
    (tmp_path / "tasks.py").write_text(
        "def make(num):\n    return ({'prompt': f'task {i}', 'answer': i} for i in range(num))\n"
    )
    rows = load_dataset(f"{tmp_path}/tasks.py:make", options={"num": 3})
    assert [row["answer"] for row in rows] == [0, 1, 2]
    with pytest.raises(UserError, match="does not accept the options"):
        load_dataset(f"{tmp_path}/tasks.py:make", options={"nmu": 3})


def test_function_or_file_that_calls_exit_is_named(tmp_path):
    (tmp_path / "tasks.py").write_text("import sys\n\n\ndef make():\n    sys.exit(0)\n")
    with pytest.raises(UserError, match=r"failed: SystemExit: 0 \(tasks.py, line 5\)"):
        load_dataset(f"{tmp_path}/tasks.py:make")
    (tmp_path / "script.py").write_text("import sys\n\nsys.exit(0)\n")
    with pytest.raises(UserError, match=r"SystemExit: 0 \(script.py, line 3\)"):
        load_dataset(f"{tmp_path}/script.py:make")


def test_option_of_a_wrong_type_is_refused(tmp_path):
    code = """
from typing import Literal


def make(num: int, split: Literal["train", "test"] = "train"):
    return [{"prompt": split}] * num
"""
    (tmp_path / "tasks.py").write_text(code)
    with pytest.raises(UserError, match=r"The option 'num' of the dataset function .* must be of type int, got str"):
        load_dataset(f"{tmp_path}/tasks.py:make", options={"num": "3"})
    with pytest.raises(UserError, match="input should be 'train' or 'test'"):
        load_dataset(f"{tmp_path}/tasks.py:make", options={"num": 3, "split": "tst"})


def test_options_of_a_file_raise(tmp_path):
    path = write_jsonl(tmp_path / "d.jsonl", [{"prompt": "a"}])
    with pytest.raises(UserError, match=r"is not one.*data\.train_limit"):
        load_dataset(path, options={"num_rows": 1})
    (tmp_path / "tasks.py").write_text("def make(num):\n    return [{'prompt': 'b'}] * num\n")
    assert len(load_dataset([path, f"{tmp_path}/tasks.py:make"], options={"num": 2})) == 3


def test_function_without_rows_raises(tmp_path):
    (tmp_path / "bad.py").write_text("def number():\n    return 5\nvalue = 3\n")
    with pytest.raises(UserError, match="must return an iterable of rows, got int"):
        load_dataset(f"{tmp_path}/bad.py:number")
    with pytest.raises(UserError, match="must be a function that returns rows, got int"):
        load_dataset(f"{tmp_path}/bad.py:value")


def test_parquet_reads_like_jsonl(tmp_path):
    rows = [
        {"prompt": [{"role": "user", "content": "a"}], "reward_model": {"style": "rule", "ground_truth": "1"}},
        {"prompt": [{"role": "user", "content": "b"}], "reward_model": {"style": "rule", "ground_truth": "2"}},
    ]
    parquet.write_table(pa.Table.from_pylist(rows), tmp_path / "d.parquet")
    read = load_dataset(str(tmp_path / "d.parquet"))
    assert read == load_dataset(write_jsonl(tmp_path / "d.jsonl", rows))
    assert [row["answer"] for row in read] == ["1", "2"]


def test_json_values_of_the_library_datasets_are_parsed(tmp_path):
    answers = pa.array(['"yes"', "3", None], pa.json_())
    tool = pa.StructArray.from_arrays(
        [["f"], pa.array(['{"x": {"type": "integer"}}'], pa.json_())], ["name", "parameters"]
    )
    tools = pa.ListArray.from_arrays([0, 1, 1, 1], tool)
    table = pa.table({"prompt": ["a", "b", "c"], "answer": answers, "tools": tools})
    parquet.write_table(table, tmp_path / "d.parquet")
    first, second, third = load_dataset(str(tmp_path / "d.parquet"))
    assert (first["answer"], second["answer"], "answer" in third) == ("yes", 3, False)
    assert first["tools"] == [{"name": "f", "parameters": {"x": {"type": "integer"}}}]


def test_parquet_without_pyarrow_names_the_extra(tmp_path, monkeypatch):
    path = tmp_path / "d.parquet"
    path.write_bytes(b"PAR1")
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", None)
    with pytest.raises(UserError, match=r"agentloop\[parquet\]"):
        load_dataset(str(path))


@pytest.mark.parametrize("suffix", [".parquet", ".jsonl.gz", ".jsonl", ".json", ".csv"])
def test_broken_files_are_named(tmp_path, suffix):
    path = tmp_path / f"d{suffix}"
    path.write_bytes(b"\xff\xfePAR1 or nothing at all\n")
    with pytest.raises(UserError, match=rf"d{suffix} cannot be read"):
        load_dataset(str(path))


def test_shards_of_a_folder_are_read_in_name_order(tmp_path):
    write_jsonl(tmp_path / "b.jsonl", [{"prompt": "3"}])
    parquet.write_table(pa.Table.from_pylist([{"prompt": "1"}, {"prompt": "2"}]), tmp_path / "a.parquet")
    (tmp_path / "README.md").write_text("# Data")
    (tmp_path / "._b.jsonl").write_bytes(b"\x00\x05\x16\x07Mac OS X")
    rows = load_dataset(str(tmp_path))
    assert [(row["prompt"], row["id"]) for row in rows] == [("1", "0"), ("2", "1"), ("3", "2")]


@pytest.mark.slow
def test_folder_saved_by_datasets_is_read(tmp_path):
    rows = [{"prompt": f"task {i}", "answer": str(i)} for i in range(5)]
    script = (
        "import sys, json, datasets\n"
        "train = datasets.Dataset.from_list(json.loads(sys.argv[2])).shuffle(seed=1)\n"
        "datasets.DatasetDict(train=train).save_to_disk(sys.argv[1], num_shards={'train': 2})\n"
    )
    command = [sys.executable, "-c", script, str(tmp_path / "data"), json.dumps(rows)]
    subprocess.run(command, check=True, capture_output=True)
    assert len(list((tmp_path / "data" / "train").glob("*.arrow"))) == 2
    read = load_dataset(f"{tmp_path}/data/train")
    assert sorted(row["answer"] for row in read) == ["0", "1", "2", "3", "4"]
    assert [row["answer"] for row in read] != ["0", "1", "2", "3", "4"]
    with pytest.raises(UserError, match=r"several splits \(train\): use the folder of one"):
        load_dataset(f"{tmp_path}/data")


def test_folder_without_dataset_raises(tmp_path):
    with pytest.raises(UserError, match="has no dataset"):
        load_dataset(str(tmp_path))


def test_several_files_form_one_dataset(tmp_path):
    first = write_jsonl(tmp_path / "a.jsonl", [{"prompt": "1"}, {"prompt": "2"}])
    second = write_jsonl(tmp_path / "b.jsonl", [{"prompt": "3"}, {"prompt": "4"}])
    rows = load_dataset([second, first], limit=3)
    assert [(row["prompt"], row["id"]) for row in rows] == [("3", "0"), ("4", "1"), ("1", "2")]
    with pytest.raises(UserError, match=r"no dataset file .*nothing\.jsonl"):
        load_dataset([first, str(tmp_path / "nothing.jsonl")])


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ("return [{'prompt': 'a'}][3:4] + [unknown]", r"failed: NameError: .*'unknown'.* \(tasks.py, line 2\)"),
        ("yield {'prompt': 'a'}\n    yield {}['b']", r"failed after row 1: KeyError: 'b' \(tasks.py, line 3\)"),
        ("raise TypeError('own')", r"failed: TypeError: own \(tasks.py, line 2\)"),
    ],
)
def test_function_exception_names_its_location(tmp_path, body, words):
    (tmp_path / "tasks.py").write_text(f"def rows():\n    {body}\n")
    with pytest.raises(UserError, match=words):
        load_dataset(f"{tmp_path}/tasks.py:rows")


def test_options_of_a_file_are_refused_with_the_keys_that_may_hold_them(tmp_path):
    (tmp_path / "rows.jsonl").write_text('{"prompt": "x"}\n')
    with pytest.raises(UserError, match=r"Remove them from .* or the options and levels of a source"):
        load_dataset(str(tmp_path / "rows.jsonl"), options={"size": 3})
