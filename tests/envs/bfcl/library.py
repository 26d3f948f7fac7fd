"""The package's own checker, in its own interpreter: reads {name: [id, turns of steps of calls]}, prints verdicts."""

import json
import sys
from pathlib import Path

import bfcl_eval
from bfcl_eval.eval_checker.multi_turn_eval.multi_turn_checker import multi_turn_checker

data = Path(bfcl_eval.__file__).parent / "data"
tasks, solutions = {}, {}
for file in sorted(data.glob("BFCL_v4_multi_turn_*.json")):
    tasks |= {each["id"]: each for each in map(json.loads, file.read_text().splitlines())}
    answers = (data / "possible_answer" / file.name).read_text().splitlines()
    solutions |= {each["id"]: each["ground_truth"] for each in map(json.loads, answers)}
verdicts = {}
for name, (task, turns) in json.load(sys.stdin).items():
    checked = multi_turn_checker(turns, solutions[task], tasks[task], task.rpartition("_")[0], name)
    verdicts[name] = checked["valid"]
sys.stdout.write("\n" + json.dumps(verdicts))
