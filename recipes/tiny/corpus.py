"""Text from which the tiny tokenizer learns its merges: the parts of the demo's traces, and common words.

It is fixed, so that every build gives the same tokenizer: it depends neither on installed packages nor on the current
wording of tools. Other text only needs more tokens.
"""

from __future__ import annotations

CHAT = """system
user
assistant
tool
# Tools

You may call one or more functions to assist with the user query.

You are provided with function signatures within <tools></tools> XML tags:
<tools>
{"type": "function", "function": {"name": "code_interpreter", "description": "Run Python code in a fresh process and \
return what it prints; the value of a last line that is an expression is printed too. Nothing is kept between calls.", \
"parameters": {"type": "object", "properties": {"code": {"type": "string", "description": "Python code to run"}, \
"timeout": {"type": "number", "description": "Seconds", "default": 5.0, "minimum": 0, "maximum": 60}}, "required": \
["code"], "additionalProperties": false}}}
{"properties": {"code": {"description": "Python code to run", "type": "string"}}, "additionalProperties": false, \
"required": ["code"], "type": "object"}}}
</tools>

For each function call, return a json object with function name and arguments within <tool_call></tool_call> XML tags:
<tool_call>
{"name": ..., "arguments": ...}
</tool_call>
{"name": "code_interpreter", "arguments": {"code": "print(12 + 34)"}}
{"name": "code_interpreter", "arguments": {"code": "import math\\nprint(math.gcd(12, 34))"}}
{"error": "unknown tool", "items": [{"enum": ["a", "b"], "title": "Item", "anyOf": [{"type": "integer"}, {"type": \
"null"}, {"type": "boolean"}, {"type": "array"}]}]}
"""

CODE = """import math
from math import gcd, lcm
from collections import Counter
print(math.gcd(12, 34))
print(math.lcm(12, 34))
print(12 + 34)
print(12 - 34)
print(12 * 34)
print(12 // 34)
print(12 % 34)
print(12 ** 2)
print(12 ^ 34, 12 & 34, 12 | 34, 12 << 3, 12 >> 3, 12 == 34, 12 != 34, 12 <= 34, 12 >= 34)
print(max(12, 34), min(12, 34), abs(-12), round(1.5), pow(12, 34), divmod(12, 34), len(str(12)))
print(sum(range(12, 34)), sum(int(digit) for digit in str(12)), sorted([12, 34]), list(map(int, "12")))
def answer(number, other):
    result = number
    for index in range(other):
        if index % 2 == 0 and result > 10 or not index:
            result += index
        elif result is None:
            continue
        else:
            break
    while result < 100:
        result = result * 2 + 1
    return result
class Thing:
    def __init__(self, value=None, name="x"):
        self.value, self.name = value, name
try:
    print(f"{answer(12, 34):.2f}", [x for x in [1, 2, 3] if x], {"key": True}, (False,))
except ZeroDivisionError as error:
    raise ValueError("division by zero") from error
Traceback (most recent call last):
  File "<stdin>", line 1, in <module>
NameError: name 'x' is not defined
SyntaxError: invalid syntax
TypeError: unsupported operand type(s) for +: 'int' and 'str'
"""

PROSE = """You are a helpful assistant that solves problems with Python.
Answer with a number.
What is the sum of 12 and 34?
What is the total of 12 and 34?
What is the difference of 12 and 34? How much is 12 minus 34? Subtract 34 from 12.
What is the product of 12 and 34? How much is 12 times 34? Multiply 12 by 34.
What is the quotient of 12 and 34? How often does 34 fit into 12? Divide 12 by 34.
What is the remainder of 12 and 34? What remains of 12 after division by 34?
What is the greatest common divisor of 12 and 34? What is the least common multiple of 12 and 34?
What is the average of 12 and 34? What is the larger of 12 and 34? What is the smaller of 12 and 34?
Compute the sum of 12 and 34. Find the product of 12 and 34. Tell me the total of 12 and 34. Calculate, please.
Give me the difference between 12 and 34. Work out the quotient. I need the sum. I want to know the product.
The answer is 46. The result is 46. It is 46. I do not know. Let me run some code. The tool says 46. So the answer is
46. The first number is 12 and the second number is 34, so the two numbers together are 46. Maybe I can guess.
plus minus times divided by over modulo multiple factor power square root digits even odd prime count value maximum
minimum mean sum total product difference quotient remainder divisor greatest least common gcd lcm integer number
one two three four five six seven eight nine ten hundred thousand and or not yes no then there here this that these
which when where who why how what with without within before after first last next only also more most less than them
they we he she his her its our your my me will would can could should may might must have has had do does did is are
was were be been being say says said ask asks asked show shows use uses used make makes made get gets got go goes call
Search the web. Open the page. Read the file. Write text. The weather of the city is good today. An error was found.
"""


def corpus() -> list[str]:
    """Return the texts twice, because the trainer turns only chunks that it sees twice into tokens."""
    return [CHAT, CODE, PROSE] * 2
