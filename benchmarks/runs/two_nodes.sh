#!/usr/bin/env bash
# The tiny recipe on a Ray cluster of two nodes, one of which is cut off and comes back. Needs root: the nodes are two
# network namespaces of this machine, each with its own address, joined by a virtual cable.
#
#   benchmarks/runs/two_nodes.sh [steps]            prints what the run and its workers did, and writes results/two_nodes.json;
#                                              fails where a step is missing, or the lost worker did not come back
#   benchmarks/runs/two_nodes.sh [steps] learner    the learner has a rank on each node. That of the other node is killed, then
#                                              the node is cut off; the run is started again each time. Writes
#                                              results/two_nodes_learner.json; fails where a step is missing, or the run
#                                              does not say what it lost
set -euo pipefail
cd "$(dirname "$0")/../.."
steps=${1:-60}
case=${2:-workers}
bin=$PWD/${VENV:-.venv}/bin
work=$(mktemp -d /tmp/two-nodes-XXXX)
head=10.77.0.1 other=10.77.0.2
export RAY_USAGE_STATS_ENABLED=0 RAY_AUTH_MODE=disabled RAY_worker_niceness=0 OMP_NUM_THREADS=1

node() { ip netns exec "two-nodes-$1" "${@:2}"; }
on_head() { node a env -u RAY_ADDRESS "$@"; }
say() { echo "$(date +%T) $*"; }

finish() {
    for end in a b; do
        ip netns pids "two-nodes-$end" 2>/dev/null | xargs -r kill -9 2>/dev/null || true
        ip netns delete "two-nodes-$end" 2>/dev/null || true
    done
    rm -rf "$work"
}
trap finish EXIT

ip netns add two-nodes-a
ip netns add two-nodes-b
ip link add veth-a netns two-nodes-a type veth peer name veth-b netns two-nodes-b
for end in a b; do
    node $end ip link set lo up
    node $end ip link set veth-$end up
done
node a ip address add $head/24 dev veth-a
node b ip address add $other/24 dev veth-b

start_other() {
    node b "$bin/ray" start --address=$head:6379 --node-ip-address=$other --num-cpus=1 --object-store-memory=100000000 >>"$work/ray-b.log" 2>&1
}
say "ray start on both nodes"
node a "$bin/ray" start --head --node-ip-address=$head --port=6379 --num-cpus=1 --object-store-memory=100000000 \
    --include-dashboard=false --temp-dir="$work/ray" >"$work/ray-a.log" 2>&1
start_other

start_training() {
    on_head "$bin/agentloop" train tiny workers.kind=ray workers.count=2 workers.address=$head:6379 workers.hang_seconds=10 \
        engine.max_concurrency=32 algorithm.groups_per_step=4 run.folder="$work/run" run.steps="$steps" learner.warmup_updates=0 learner.lr_schedule=constant run.loggers=[] eval.every=0 \
        "$@" >"$work/train.log" 2>&1 &
    training=$!
}

metrics=$work/run/metrics.jsonl
done_steps() { if [ -f "$metrics" ]; then wc -l <"$metrics"; else echo 0; fi; }
until_steps() {
    while [ "$(done_steps)" -lt "$1" ]; do
        kill -0 $training 2>/dev/null || { cat "$work/train.log"; exit 1; }
        sleep 1
    done
}

# Ray gave the node up while nobody reached it: what runs there ends, and the node joins anew, as a supervisor would do it.
reconnect_other() {
    node b ip link set veth-b up
    ip netns pids two-nodes-b | xargs -r kill -9 || true
    start_other
}

if [ "$case" = learner ]; then
    . benchmarks/runs/two_nodes_learner.sh
    exit
fi

start_training
until_steps $((steps / 10))
say "step $(done_steps): node $other is cut off"
node b ip link set veth-b down
until_steps $((steps / 5))
say "step $(done_steps): node $other is reachable again"
reconnect_other
until_steps "$steps"
wait $training
say "step $(done_steps): done"
grep -h "Worker" "$work/train.log" || true
PYTHONPATH=. "$bin/python" - "$metrics" <<'PYTHON'
import json
import sys

from benchmarks.results_file import write

steps = [json.loads(line) for line in open(sys.argv[1])]
alive = [int(step["workers/alive"]) for step in steps]
lost = {kind: steps[-1].get(f"workers/{kind}", 0.0) for kind in ("died", "hung", "start")}
seconds = [step["time/step"] for step in steps]
weights = {way: steps[-1].get(f"workers/weights_{way}", 0.0) for way in ("mapped", "broadcast", "stored")}
print("workers alive at each step:", *alive)
print("lost:", lost)
print("weights that reached a worker:", weights)
assert [step["policy_version"] for step in steps] == list(range(1, len(steps) + 1))
assert 1 in alive and alive[-1] == 2, "one worker was lost and came back"
assert weights["broadcast"] > len(steps) / 2, "the other node got them by broadcast"
result = {
    "what": "tiny recipe on two Ray nodes (network namespaces), one cut off and back; hf engine, 1 CPU a worker",
    "steps": len(steps),
    "workers_alive_by_step": alive,
    "lost": lost,
    "weights_that_reached_a_worker": weights,
    "longest_step_seconds": max(seconds),
    "median_step_seconds": sorted(seconds)[len(seconds) // 2],
    "failed_episodes": sum(step["failures/episodes"] for step in steps),
}
sys.argv = ["benchmarks/runs/two_nodes.sh", str(len(steps))]
write("two_nodes", result)
PYTHON
