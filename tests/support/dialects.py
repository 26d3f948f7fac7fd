"""How an agent that holds its history as chat messages asks in each dialect, and reads answers and streams."""

import json


class Chat:
    path = "chat/completions"

    @staticmethod
    def body(history, tools):
        return {"messages": history, **({"tools": tools} if tools else {})}

    @staticmethod
    def message(answer):
        return answer["choices"][0]["message"]

    @staticmethod
    def whole(events):
        """The answer of a stream that ended as it should; None if it did not."""
        if not events or events[-1] != "[DONE]":
            return None
        message = {"role": "assistant", "content": ""}
        for event in events[:-1]:
            for name, new in (event["choices"][0]["delta"] if event["choices"] else {}).items():
                if name == "tool_calls":
                    calls = message.setdefault(name, [])
                    for part in new:
                        if part["index"] == len(calls):
                            calls.append({key: part[key] for key in ("id", "type", "function")})
                        else:
                            calls[part["index"]]["function"]["arguments"] += part["function"]["arguments"]
                elif name != "role":
                    message[name] = message.get(name, "") + new
        return {"choices": [{"message": message}]}


def text_of(content):
    return content if isinstance(content, str) else "".join(part.get("text", "") for part in content or ())


def images_of(content):
    """The data: URIs of a message's images."""
    return [] if isinstance(content, str) else [p["image_url"]["url"] for p in content or () if "image_url" in p]


def calls_of(message):
    return [(call["id"], call["function"]) for call in message.get("tool_calls") or ()]


def message_of(text, thinking, calls):
    calls = [{"id": i, "type": "function", "function": {"name": n, "arguments": a}} for i, n, a in calls]
    message = {"role": "assistant", "content": text, **({"reasoning_content": thinking} if thinking else {})}
    return message | ({"tool_calls": calls} if calls else {})


def parsed_or_text(arguments):
    """Arguments as an object; those of an unfinished call are text."""
    try:
        return json.loads(arguments)
    except json.JSONDecodeError:
        return arguments


def as_text(arguments):
    return arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)


class Messages:
    path = "messages"

    @staticmethod
    def body(history, tools):
        messages = []
        for message in history:
            content = [{"type": "text", "text": text_of(message["content"])}]
            for url in images_of(message["content"]):
                media_type, data = url.removeprefix("data:").split(";base64,")
                source = {"type": "base64", "media_type": media_type, "data": data}
                content.append({"type": "image", "source": source})
            if message["role"] == "tool":
                role, call_id = "user", message["tool_call_id"]
                content = [{"type": "tool_result", "tool_use_id": call_id, "content": content}]
            else:
                role = message["role"]
                if thinking := message.get("reasoning_content"):
                    content.insert(0, {"type": "thinking", "thinking": thinking, "signature": ""})
                for call_id, called in calls_of(message):
                    made = {"name": called["name"], "input": json.loads(called["arguments"])}
                    content.append({"type": "tool_use", "id": call_id, **made})
            messages.append({"role": role, "content": content})
        tools = [{"name": t["function"]["name"], "input_schema": t["function"]["parameters"]} for t in tools]
        if messages[-1]["role"] == "assistant":  # which this API would have the model continue
            messages.append({"role": "user", "content": "Go on."})
        return {"messages": messages, "max_tokens": 1000, **({"tools": tools} if tools else {})}

    @staticmethod
    def message(answer):
        of = {kind: [b for b in answer["content"] if b["type"] == kind] for kind in ("text", "thinking", "tool_use")}
        calls = [(b["id"], b["name"], as_text(b["input"])) for b in of["tool_use"]]
        return message_of("".join(b["text"] for b in of["text"]), "".join(b["thinking"] for b in of["thinking"]), calls)

    @staticmethod
    def whole(events):
        if not events or events[-1]["type"] != "message_stop":
            return None
        blocks = []
        for event in events:
            if event["type"] == "content_block_start":
                blocks.append(dict(event["content_block"]))
            elif event["type"] == "content_block_delta":
                delta = event["delta"]
                if delta["type"] == "input_json_delta":
                    blocks[-1]["json"] = blocks[-1].get("json", "") + delta["partial_json"]
                else:
                    (kind,) = delta.keys() - {"type"}
                    blocks[-1][kind] += delta[kind]
        for block in blocks:
            if "json" in block:
                block["input"] = parsed_or_text(block.pop("json"))
        return {"content": blocks}


class Responses:
    path = "responses"

    @staticmethod
    def body(history, tools):
        items = []
        for message in history:
            kind = "output_text" if message["role"] == "assistant" else "input_text"
            content = [{"type": kind, "text": text_of(message["content"])}]
            content += [{"type": "input_image", "image_url": url} for url in images_of(message["content"])]
            if message["role"] == "tool":
                items.append({"type": "function_call_output", "call_id": message["tool_call_id"], "output": content})
                continue
            if thinking := message.get("reasoning_content"):
                items.append({"type": "reasoning", "content": [{"type": "reasoning_text", "text": thinking}]})
            items.append({"type": "message", "role": message["role"], "content": content})
            for call_id, called in calls_of(message):
                items.append({"type": "function_call", "call_id": call_id, **called})
        tools = [{"type": "function", **tool["function"]} for tool in tools]
        return {"input": items, "store": False, **({"tools": tools} if tools else {})}

    @staticmethod
    def message(answer):
        of = {"message": "", "reasoning": ""}
        calls = []
        for item in answer["output"]:
            if item["type"] == "function_call":
                calls.append((item["call_id"], item["name"], item["arguments"]))
            else:
                of[item["type"]] += item["content"][0]["text"]
        return message_of(of["message"], of["reasoning"], calls)

    @staticmethod
    def whole(events):
        is_whole = events and events[-1]["type"] in ("response.completed", "response.incomplete")
        return events[-1]["response"] if is_whole else None


DIALECTS = [Chat, Messages, Responses]


def events_of(lines):
    """The data of the server-sent events in these lines."""
    texts = [line.removeprefix("data: ") for line in lines if line.startswith("data: ")]
    return [text if text == "[DONE]" else json.loads(text) for text in texts]
