"""The evaluation of verifiers itself, run by an interpreter that has it: prints the reward of each task.

python library.py v1|v0 FILE '<arguments as JSON>' '<turns as JSON>'
The model is a server of this process that says the turns, in order in each conversation.
"""

import asyncio
import json
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path


class Model(BaseHTTPRequestHandler):
    def do_POST(self):
        request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        number = sum(message["role"] == "assistant" for message in request["messages"])
        message = {"role": "assistant", "content": TURNS[number]}
        choice = {"index": 0, "finish_reason": "stop"}
        answer = {"id": "x", "created": 0, "model": "policy"}
        if request.get("stream"):
            chunk = {**answer, "object": "chat.completion.chunk", "choices": [{**choice, "delta": message}]}
            body, kind = f"data: {json.dumps(chunk)}\n\ndata: [DONE]\n\n".encode(), "text/event-stream"
        else:
            whole = {**answer, "object": "chat.completion", "choices": [{**choice, "message": message}]}
            body, kind = json.dumps(whole).encode(), "application/json"
        self.send_response(200)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


def v1(name, arguments, url):
    from verifiers.v1.cli.eval.runner import run_eval
    from verifiers.v1.configs.cli.eval import EvalConfig

    arguments["taskset"]["id"] = name
    arguments["agent"]["runtime"] = {"type": "subprocess"}
    client = {"base_url": url, "api_key_var": "NO_KEY"}
    config = EvalConfig(env=arguments, client=client, model="policy", rich=None, num_rollouts=1, push=False)
    episodes = asyncio.run(run_eval(config))
    return {episode.task.data.name: episode.traces[0].reward for episode in episodes}


def v0(name, arguments, url):
    import verifiers as vf
    from verifiers.types import ClientConfig

    env = vf.load_environment(name, **arguments)
    client = ClientConfig(api_base_url=url, api_key_var="NO_KEY")
    found = env.evaluate_sync(client=client, model="policy", num_examples=-1, rollouts_per_example=1)
    return {f"{name}-train-{each['example_id']}": each["reward"] for each in found["outputs"]}


if __name__ == "__main__":
    api, file, arguments, turns = sys.argv[1:]
    TURNS = json.loads(turns)
    sys.path.insert(0, str(Path(file).parent))
    server = ThreadingHTTPServer(("127.0.0.1", 0), Model)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    address = f"http://127.0.0.1:{server.server_port}/v1"
    rewards = {"v1": v1, "v0": v0}[api](Path(file).stem, json.loads(arguments), address)
    print("\n" + json.dumps(rewards))
