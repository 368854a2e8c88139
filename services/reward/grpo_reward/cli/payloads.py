"""Texts made to make a reward hang or crash. What they score does not matter: they may even be right."""

from .answer_frame import Frame

LONG = 50_000


def hostile_answers() -> dict[str, str]:
    """Name → what is put where the answer stands, and sent alone as well."""
    return {
        "10,000 opening brackets": "(" * 10_000,
        "10,000 pairs of brackets": "(" * 10_000 + "1" + ")" * 10_000,
        "10,000 pairs of braces": "{" * 10_000 + "1" + "}" * 10_000,
        "30 nested brackets": "(" * 30 + "1" + ")" * 30,
        "power of a power": "9**9**9",
        "power of a power in LaTeX": "9^{9^{9^9}}",
        "power with a computed exponent": "10^{5000 \\cdot 5000 \\cdot 5000}",
        "chain of powers": "2" + "**2" * 200,
        "large factorial": "99999999!",
        "huge decimal exponent": "1e999999999",
        "infinity as a float": "1e400",
        "long list by multiplication": "[0]*10**10",
        "20,000 digits": "1" * 20_000,
        "20,000 decimal places": "0." + "0" * 20_000 + "1",
        "sum of 10,000 ones": "+".join(["1"] * 10_000),
        "10,000 signs": "-" * 10_000 + "1",
        "10,000 commas": "1," * 10_000,
        "whole division": "7//2",
        "division by zero": "1/0",
        "remainder by zero": "1%0",
        "number reuse": "1+1+1+1+1+1",
        "superscript digits": "²³",
        "Arabic digits": "٤٤ + ١٩",
        "full-width digits": "４４＋１９",
        "Roman numeral signs": "Ⅻ",
        "null bytes": "\0" * 10 + "1\0",
        "control characters": "".join(map(chr, range(32))),
        "line separators": "1\u2028\u2029\x85\x0b\x0c2",
        "text from right to left": "\u202e21\u202c",
        "invisible characters": "1\u200b\ufeff\u2060\u00ad2",
        "10,000 accents": "a" + "\u0301" * 10_000,
        "replacement character": "\ufffd",
        "no character at all": "\uffff\ufdd0",
        "Python call": "__import__('os').getpid()",
        "attribute chain": "().__class__.__base__.__subclasses__()",
        "format string": "{0.__class__} %s %n %(x)s",
        "LaTeX without end": "\\frac{" * 300,
        "nested roots": "\\sqrt{" * 20 + "2" + "}" * 20,
        "500 unknowns": "+".join(f"x_{{{number}}}" for number in range(500)),
        "empty matrix": "\\begin{pmatrix}\\end{pmatrix}",
        "JSON without end": '{"name":' * 5_000,
        "deep JSON list": "[" * LONG + "]" * LONG,
        "JSON with NaN": '{"name": NaN, "arguments": Infinity}',
        "JSON of another type": '{"name": ["a"], "arguments": 1}',
        "blanks": " " * LONG + "x",
        "line breaks": "\n" * LONG + "x",
        "one letter": "a" * LONG,
        "one word": "word " * 10_000,
    }


def hostile_texts(frame: Frame) -> dict[str, str]:
    """Name → a whole completion built around the frame of a right one."""
    return {
        "200,000 characters of thought": f"<think>{'so ' * 66_000}</think>{frame.around(frame.answer)}",
        "right completion 1,000 times": frame.around(frame.answer) * 1000,
        "20,000 opening answer tags": "<answer>" * 20_000,
        "20,000 closing answer tags": "</answer>" * 20_000,
        "5,000 answer blocks": "<answer>1</answer>" * 5_000,
        "5,000 nested answer blocks": "<answer>" * 5_000 + "1" + "</answer>" * 5_000,
        "20,000 opening think tags": "<think>" * 20_000,
        "think tag and blanks": "<think>" + " " * LONG,
        "5,000 think blocks": "<think>x</think>" * 5_000,
        "5,000 boxes without end": "\\boxed{" * 5_000,
        "5,000 hash marks": "#### " * 5_000,
        "5,000 tool calls": '<tool_call>{"name": "a"}</tool_call>' * 5_000,
        "5,000 steps": "Step 1:\n1. x\n- y\n" * 5_000,
        "half a tag": frame.before + frame.answer + "</answe",
        "upper-case tags": frame.around(frame.answer).upper(),
        "code without end": "```python\n" * 5_000,
    }
