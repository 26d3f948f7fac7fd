import math

import pytest

from agentloop.errors import UserError
from agentloop.trainer.from_verl.overrides import Override, parse_override, parse_value


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1", 1),
        ("-1_000", -1000),
        ("1e-6", 1e-6),
        (".5", 0.5),
        ("5.", 5.0),
        ("-inf", -math.inf),
        ("007", "007"),  # Hydra reads a string
        ("1.5.2", "1.5.2"),
        ("True", True),
        ("FALSE", False),
        ("null", None),
        ("None", "None"),
        ("", ""),
        (" a b ", "a b"),
        ("$HOME/x y:1", "$HOME/x y:1"),
        ("'a, \"b\"'", 'a, "b"'),
        (r"'it\'s'", "it's"),
        ('"1"', "1"),
        (r"a\,b\=c\\", "a,b=c\\"),
        ("[]", []),
        ('["console","wandb"]', ["console", "wandb"]),
        ("[a b, 1 ,[2,'x,y'], null]", ["a b", 1, [2, "x,y"], None]),
        ("{}", {}),
        ("{a: 1, b:[x,'y']  , d:{e: 2.5}}", {"a": 1, "b": ["x", "y"], "d": {"e": 2.5}}),
        ("${data.train_batch_size}", "${data.train_batch_size}"),
        ("[${oc.select:a.b,[1]}, 2]", ["${oc.select:a.b,[1]}", 2]),
        ("hdfs://host:1/path", "hdfs://host:1/path"),
    ],
)
def test_values_are_read_as_hydra_reads_them(text: str, value: object):
    found = parse_value(text)
    assert found == value
    assert type(found) is type(value)


@pytest.mark.parametrize("text", ["[a", "{a: 1", "{a}", "'a", "'a' b"])
def test_values_that_hydra_refuses(text: str):
    with pytest.raises(UserError, match="Hydra cannot read the value"):
        parse_value(text)


@pytest.mark.parametrize(
    ("text", "override"),
    [
        ("a.b=1", Override("a.b", 1)),
        ("+a.b=x=y", Override("a.b", "x=y")),
        ("++a=", Override("a", "")),
        ("~a.b", Override("a.b", None, "delete")),
        ("~a.b=1", Override("a.b", None, "delete")),
    ],
)
def test_overrides(text: str, override: Override):
    assert parse_override(text) == override


@pytest.mark.parametrize("text", ["a", "=1", "+=1"])
def test_malformed_overrides_are_refused(text: str):
    with pytest.raises(UserError, match="is not a Hydra override"):
        parse_override(text)
