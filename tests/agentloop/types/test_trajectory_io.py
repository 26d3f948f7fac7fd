"""Round trips, and the errors for files that are not trajectories."""

import json
import math
import sys
from array import array

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from agentloop.errors import FailureKind, UserError
from agentloop.types.limits import StopReason
from agentloop.types.plain_data import ImageTable, from_plain, to_plain
from agentloop.types.routed_experts import RoutedExperts
from agentloop.types.trajectory import SegmentKind, Trajectory
from agentloop.types.trajectory_io import from_dict, read_jsonl, same, to_dict, write_jsonl


def picture(color):
    image = Image.new("RGB", (3, 2), color)
    image.putpixel((1, 1), (1, 2, 3))
    return image


def full(logprob=-0.1):
    first, second = picture("red"), picture("blue")
    trajectory = Trajectory(
        trajectory_id="t",
        group_id="g",
        stop_reason=StopReason.COMPLETED,
        reward=0.1,
        turn_rewards=[0.5, math.nan],
        failures={FailureKind.TOOL: 2},
        metrics={"seconds": 0.25},
        task={"answer": "42", "tags": ("a", b"\x00"), "picture": first, "numbers": np.arange(3)},
        error="none that\ncounts",
        messages=[
            {"role": "user", "content": [{"type": "text", "text": "\ud83d q é"}, {"type": "image", "image": first}]},
            {"role": "assistant", "content": "42", "tool_calls": [{"function": {"arguments": {"$image": 3}}}]},
        ],
    )
    trajectory.append(SegmentKind.PROMPT, [1, 2, 3], images=[first])
    trajectory.append(SegmentKind.SAMPLED, [4, 5, 6], logprobs=[logprob, -1e-30, -math.inf], versions=[7, 7, 8])
    trajectory.append(SegmentKind.TEMPLATE, [10])
    trajectory.append(SegmentKind.OBSERVATION, [2**31 - 1], images=[second, first])
    return trajectory


def by_json(trajectory, _):
    return from_dict(json.loads(json.dumps(to_dict(trajectory))))


def by_jsonl(trajectory, folder):
    write_jsonl(folder / "t.jsonl", [trajectory])
    return next(read_jsonl(folder / "t.jsonl"))


ways = pytest.mark.parametrize("way", [by_json, by_jsonl])


@ways
def test_round_trip(way, tmp_path):
    trajectory = full()
    back = way(trajectory, tmp_path)
    assert same(back, trajectory)
    assert back.token_ids.tolist() == [1, 2, 3, 4, 5, 6, 10, 2**31 - 1]
    assert back.logprobs.tobytes() == trajectory.logprobs.tobytes()
    assert back.versions.tolist() == [-1, -1, -1, 7, 7, 8, -1, -1]
    assert back.loss_mask.tolist() == trajectory.loss_mask.tolist()
    assert back.stop_reason is StopReason.COMPLETED
    assert back.reward == 0.1
    assert math.isnan(back.turn_rewards[1])
    assert back.failures == {"tool": 2}
    assert back.task["tags"] == ("a", b"\x00")
    assert back.task["numbers"] == [0, 1, 2]
    assert back.messages[1] == trajectory.messages[1]
    assert back.messages[0]["content"][0]["text"] == "\ud83d q é"
    back.append(SegmentKind.OBSERVATION, [1])


@ways
def test_images_come_back_pixel_by_pixel_and_shared(way, tmp_path):
    trajectory = full()
    back = way(trajectory, tmp_path)
    shown = [image.tobytes() for image in back.images]
    assert shown == [image.tobytes() for image in trajectory.images]
    assert back.images[0] is back.images[2]
    assert back.messages[0]["content"][1]["image"] is back.images[0]
    assert back.task["picture"] is back.images[0]


@ways
def test_an_empty_trajectory(way, tmp_path):
    back = way(Trajectory(), tmp_path)
    assert back == Trajectory()


segments = st.lists(
    st.tuples(
        st.sampled_from(SegmentKind),
        st.lists(
            st.tuples(st.integers(0, 2**31 - 1), st.floats(width=32), st.integers(-(2**31), 2**31 - 1)), max_size=5
        ),
    ),
    max_size=8,
)


@given(segments)
@settings(max_examples=60, deadline=None)
def test_any_tokens_survive(tmp_path_factory, parts):
    trajectory = Trajectory()
    for kind, tokens in parts:
        ids, logprobs, versions = ([token[i] for token in tokens] for i in range(3))
        sampled = {"logprobs": logprobs, "versions": versions} if kind is SegmentKind.SAMPLED else {}
        trajectory.append(kind, ids, **sampled)
    folder = tmp_path_factory.mktemp("trajectories")
    for way in (by_json, by_jsonl):
        back = way(trajectory, folder)
        assert back.segments == trajectory.segments
        for name in ("token_ids", "logprobs", "versions"):
            assert getattr(back, name).tobytes() == getattr(trajectory, name).tobytes()


@pytest.mark.parametrize("way", [by_json, by_jsonl])
def test_branches_and_the_answer_come_back(way, tmp_path):
    trajectory = full()
    branch = full()
    branch.branches = [Trajectory(trajectory_id="deeper", answer="")]
    trajectory.answer, trajectory.branches = "43", [branch, Trajectory(trajectory_id="empty")]
    again = way(trajectory, tmp_path)
    assert same(again, trajectory)
    assert again.final_text == "43"
    assert again.branches[0].final_text == "42"
    assert again.branches[0].branches[0].answer == ""
    assert not same(again, full())


def test_same_tells_differences():
    assert same(full(), full())
    assert not same(full(), full(logprob=-1e-31))
    other = full()
    other.images[1].putpixel((0, 0), (9, 9, 9))
    assert not same(full(), other)


@pytest.mark.parametrize("version", [None, 0, 2, "1"])
def test_an_unknown_format_is_refused(version, tmp_path):
    data = {**to_dict(full()), "format": version}
    with pytest.raises(UserError, match=f"has format {version!r}"):
        from_dict(data)
    (tmp_path / "t.jsonl").write_text(json.dumps(data) + "\n")
    with pytest.raises(UserError, match=r"t\.jsonl, line 1: .*has format"):
        list(read_jsonl(tmp_path / "t.jsonl"))


@pytest.mark.parametrize(
    "change", [{"segments": None}, {"segments": [{"kind": "said", "ids": []}]}, {"stop_reason": "bored"}]
)
def test_data_that_is_not_a_trajectory_is_refused(change):
    with pytest.raises(UserError, match="not a complete trajectory"):
        from_dict({**to_dict(full()), **change})
    with pytest.raises(UserError, match="has format None"):
        from_dict([])


def test_jsonl_of_many_is_appended_to(tmp_path):
    path = tmp_path / "many.jsonl"
    assert write_jsonl(path, [Trajectory("a"), full()]) == 2
    assert write_jsonl(path, [Trajectory("b")], append=True) == 1
    assert [item.trajectory_id for item in read_jsonl(path)] == ["a", "t", "b"]
    assert write_jsonl(path, iter([Trajectory("c")])) == 1
    assert [item.trajectory_id for item in read_jsonl(path)] == ["c"]


def test_a_line_that_a_kill_cut_is_passed_over_and_written_over(tmp_path):
    path = tmp_path / "many.jsonl"
    write_jsonl(path, [Trajectory("a"), full()])
    data = path.read_bytes()
    for cut in (1, 40, len(data) - data.index(b"\n") - 2):
        path.write_bytes(data[:-cut])
        assert [item.trajectory_id for item in read_jsonl(path)] == ["a"]
        write_jsonl(path, [Trajectory("b")], append=True)
        assert [item.trajectory_id for item in read_jsonl(path)] == ["a", "b"]
    path.write_bytes(data[:5])
    write_jsonl(path, [Trajectory("b")], append=True)
    assert [item.trajectory_id for item in read_jsonl(path)] == ["b"]


def test_a_bad_line_is_named(tmp_path):
    path = tmp_path / "many.jsonl"
    write_jsonl(path, [Trajectory("a")])
    with path.open("a") as file:
        file.write("nonsense\n")
    with pytest.raises(UserError, match=r"many\.jsonl, line 2 is not JSON"):
        list(read_jsonl(path))


def test_a_file_that_was_not_copied_whole_is_named(tmp_path):
    path = tmp_path / "many.jsonl.gz"
    write_jsonl(path, [Trajectory("a")])
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(UserError, match=r"many\.jsonl\.gz is incomplete or damaged"):
        list(read_jsonl(path))


def test_any_row_can_be_written():
    images = ImageTable()
    value = {"when": np.datetime64("2026-01-01"), "set": {1}, 3: [np.float32(0.5), -0.0], "$tuple": 1, "n": -math.inf}
    plain = json.loads(json.dumps(to_plain(value, images), allow_nan=False))
    assert from_plain(plain, images) == {
        "when": "2026-01-01", "set": "{1}", "3": [0.5, 0.0], "$tuple": 1, "n": -math.inf,
    }  # fmt: skip
    assert from_plain(to_plain({"$bytes": "x"}, images), images) == {"$bytes": "x"}
    assert to_plain(set("egg, bacon"), images) == "{' ', ',', 'a', 'b', 'c', 'e', 'g', 'n', 'o'}"


@pytest.mark.parametrize("mode", ["1", "L", "P", "RGBA", "CMYK", "F"])
def test_modes_of_images(mode):
    images = ImageTable()
    image = picture("green").convert(mode)
    back = from_plain(to_plain(image, images), ImageTable.from_base64(images.as_base64()))
    assert back.convert("RGB").tobytes() == image.convert("RGB").tobytes()


def long_trajectory(turns):
    trajectory = Trajectory()
    for turn in range(turns):
        trajectory.append(SegmentKind.SAMPLED, [turn] * 25, logprobs=array("f", [-0.123] * 25), versions=[turn] * 25)
        trajectory.append(SegmentKind.OBSERVATION, [turn] * 25)
    return trajectory


def calls_of(work):
    """How many functions `work` calls, Python's and built-in ones."""
    count = 0

    def profile(_frame, event, _argument):
        nonlocal count
        count += event in ("call", "c_call")

    previous = sys.getprofile()
    sys.setprofile(profile)
    try:
        work()
    finally:
        sys.setprofile(previous)
    return count


@pytest.mark.slow
def test_serialising_costs_in_proportion():
    """100,000 tokens in 4,000 segments against half of that: twice the calls, twice the bytes."""
    half, whole = long_trajectory(1000), long_trajectory(2000)
    assert len(whole) == 100_000
    assert calls_of(lambda: to_dict(whole)) < 2.1 * calls_of(lambda: to_dict(half))
    texts = [json.dumps(to_dict(trajectory)) for trajectory in (half, whole)]
    assert len(texts[1]) < 2.2 * len(texts[0])
    assert len(texts[1]) < 16 * len(whole)
    assert calls_of(lambda: from_dict(json.loads(texts[1]))) < 2.1 * calls_of(lambda: from_dict(json.loads(texts[0])))


def test_jsonl_may_be_compressed(tmp_path):
    path = tmp_path / "t.jsonl.gz"
    assert write_jsonl(path, [full(), full()]) == 2
    assert path.read_bytes()[:2] == b"\x1f\x8b"
    assert [same(back, full()) for back in read_jsonl(path)] == [True, True]
    with pytest.raises(ValueError, match="compressed"):
        write_jsonl(path, [full()], append=True)


def routed(count, experts, start=0):
    rng = np.random.default_rng(0)
    return RoutedExperts(start, rng.integers(0, experts, (count, 3, 2)).astype(np.int16))


@pytest.mark.parametrize("experts", [8, 256, 512])
def test_routed_experts_survive_in_few_bytes(experts):
    trajectory = Trajectory()
    trajectory.append(SegmentKind.PROMPT, range(1000))
    plain = len(json.dumps(to_dict(trajectory)))
    trajectory.add_routed(routed(999, experts))
    written = json.dumps(to_dict(trajectory))
    assert len(written) - plain < 999 * 3 * 2 * (1.4 if experts <= 256 else 2.8) + 100
    read = from_dict(json.loads(written))
    assert read.num_routed == 999
    assert read.routed.experts.dtype == np.int16
    np.testing.assert_array_equal(read.routed.experts, trajectory.routed.experts)


def test_torn_routed_experts_are_refused():
    trajectory = Trajectory()
    trajectory.append(SegmentKind.PROMPT, range(9))
    trajectory.add_routed(routed(8, 8))
    data = to_dict(trajectory)
    for change in ({"shape": [7, 3, 2]}, {"zlib": "AAAA"}):
        with pytest.raises(UserError, match="not a complete trajectory"):
            from_dict(data | {"routed_experts": data["routed_experts"] | change})
