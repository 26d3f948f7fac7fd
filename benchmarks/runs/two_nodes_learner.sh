# The case `learner` of two_nodes.sh, which reads this file.

with_learner() { start_training learner.ranks=2 learner.nodes=2 learner.device=cpu run.save_every=4; }

# Waits until the run has ended, and prints the seconds that it took and its message about the rank.
until_it_ends() {
    local started=$SECONDS
    if wait $training; then
        say "the run went on without a rank"
        exit 1
    fi
    took=$((SECONDS - started))
    message=$(tr -s '\n ' ' ' <"$work/train.log" | grep -o "Learner rank 1 of 2 [^.]*\.[^.]*\.[^.]*\.[^.]*\." | tail -1) || {
        cat "$work/train.log"
        exit 1
    }
    say "after $took s: $message"
}

with_learner
until_steps $((steps / 3))
pid=$(ip netns pids two-nodes-b | while read -r each; do grep -lza ray::RankActor "/proc/$each/cmdline" 2>/dev/null; done | cut -d/ -f3 | tail -1)
say "step $(done_steps): the rank on node $other is killed"
kill -9 "$pid"
until_it_ends
killed_seconds=$took killed_message=$message

with_learner
until_steps $((steps * 2 / 3))
say "step $(done_steps): node $other is cut off"
node b ip link set veth-b down
until_it_ends
reconnect_other

with_learner
wait $training || { cat "$work/train.log"; exit 1; }
say "step $(done_steps): done"
PYTHONPATH=. "$bin/python" - "$metrics" "$killed_seconds" "$killed_message" "$took" "$message" <<'PYTHON'
import json
import sys

from benchmarks.results_file import write

path, killed_seconds, killed_message, cut_seconds, cut_message = sys.argv[1:]
steps = [json.loads(line) for line in open(path)]
assert [step["policy_version"] for step in steps] == list(range(1, len(steps) + 1))
assert "died on node" in killed_message and "10.77.0.2" in killed_message
assert "was lost with its node 10.77.0.2" in cut_message
seconds = sorted(step["time/step"] for step in steps)
result = {
    "what": "tiny recipe on two Ray nodes (network namespaces), a rank of the learner (gloo) and a worker on each; the "
    "rank of the other node is killed, later its node is cut off, and the run is started again each time",
    "steps": len(steps),
    "rank_killed": {"run_ended_after_seconds": int(killed_seconds), "message": killed_message},
    "node_cut_off": {"run_ended_after_seconds": int(cut_seconds), "message": cut_message},
    "median_step_seconds": seconds[len(seconds) // 2],
    "failed_episodes": sum(step["failures/episodes"] for step in steps),
}
sys.argv = ["benchmarks/runs/two_nodes.sh", str(len(steps)), "learner"]
write("two_nodes_learner", result)
PYTHON
