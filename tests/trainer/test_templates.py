r"""Templates: any column and path is filled in, LaTeX and JSON stay text, and what leaves out the question fails."""

import json
from pathlib import Path

import pytest
from tests.tiny_model import make_tokenizer

from grpo_trainer.config.run_config import DataConfig
from grpo_trainer.data.recipes.template import Template
from grpo_trainer.data.rows import load_prompt_rows
from grpo_trainer.errors import UsageError

ROW = {
    "question": "2+2?",
    "my question": "1+1?",
    "问题": "3+3?",
    "source-id": 7,
    "Frage (neu)": "4+4?",
    "a.b": "dotted",
    "a": {"b": "nested", "c.d": {"e": "deep"}},
    "extra": {"q": "5+5?", "choices": ["x", {"y": "z"}]},
    "nums": [44, 19],
    "n": 3,
    "answer": "the gold answer",
}
TEXTS = [
    r"Put it into \boxed{} or \boxed{answer}.",
    r"\frac{1}{2}, \frac{a}{n}, \frac{x_{1}}{n}, \sqrt[3]{n}, \text{cm}, \text{ n }, \begin{align*} n \end{align*}",
    r"x^{n} + a_{n} + 2a_{n} + f(n)_{n} + \sum_{n}^{n} + \mathbb{R} + {\bf n} + \operatorname*{argmax}_{n}",
    '{"answer": 1}, {"answer": {"value": [1]}}, {\'answer\': 1}, {answer: 1}, {1, 2}, {}, { }, {{}}, {1}, {{"n": 1}}',
    "{ return n; }, [a-z]{3}, \\d{2,4}, {x, y | x > 0}, \\{1, 2\\}, \\{n\\}, ${n:+1}, {n!r}",
    "a brace } and another { of a { text\n}",
]


@pytest.mark.parametrize(
    ("template", "text"),
    [
        ("{question}", "2+2?"),
        ("{my question}{问题}", "1+1?3+3?"),
        ("{source-id}: {Frage (neu)} {{Frage (neu)}}", "7: 4+4? {{Frage (neu)}}"),
        ("{ question }", "2+2?"),
        ("{extra.q} {extra.choices.0} {extra.choices[1].y}", "5+5? x z"),
        ("{a.b} {a.c.d.e}", "dotted deep"),
        ("{nums} {n}", "[44, 19] 3"),
        ("{{question}} {{my question}} {{extra.q}} {{nothing}}", "{question} {my question} {extra.q} {nothing}"),
        ("{{{question}}} {{{{question}}}}", "{2+2?} {{question}}"),
        (r"\boxed{{{n}}} \boxed{{n}} \boxed{n}", r"\boxed{3} \boxed{n} \boxed{n}"),
        (r"\sqrt{ {n} }", r"\sqrt{ 3 }"),
        ('{"question": "{question}", "n": {n}}', '{"question": "2+2?", "n": 3}'),
        (r"Question:\n{question}\t{n}", r"Question:\n2+2?\t3"),
        (r"\\{question} \nu{n}", r"\\2+2? \nu{n}"),
        ("{question}_{n} user_{n} _{question}_ **{question}**", "2+2?_3 user_3 _2+2?_ **2+2?**"),
        *((text, text) for text in TEXTS),
    ],
)
def test_names_and_paths_are_filled_in_and_all_other_braces_are_text(template: str, text: str):
    assert Template.of(template).filled(ROW) == text


def load(folder: Path, template: str, *rows: dict[str, object]) -> list[object]:
    path = folder / "rows.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    made = load_prompt_rows(DataConfig(dataset=str(path), prompt_template=template), make_tokenizer())
    return [row.prompt[0]["content"] for row in made]


@pytest.mark.parametrize("text", TEXTS)
def test_a_text_beside_a_column_is_no_mistake(tmp_path: Path, text: str):
    assert load(tmp_path, "{question}" + text, ROW) == ["2+2?" + text]


NESTED = {"extra": {"question": "2+2?"}, "my question": "3+3?"}


@pytest.mark.parametrize(
    ("template", "row", "message"),
    [
        ("{my questoin}", ROW, r"no column my questoin, .*; the nearest: my question.*\(its columns are question, my"),
        ("{question} {extra.qq}", ROW, r"no column extra\.qq, which data\.prompt_template .*nearest: extra\.q"),
        ("{my question} {question}", NESTED, r"no column question, .*the nearest: extra\.question"),
        ("{question} {extra.choices[2]}", ROW, r"no column extra\.choices\[2\]"),
        ("{question} {your answer}", ROW, r"no column your answer, .*; \{\{your answer\}\} stands for the text \{y"),
        ("What is it?", ROW, r"fills in no column of the dataset .* \(write the name of a column in braces; its col"),
        ("{{question}}", ROW, "fills in no column"),
        (r"\boxed{question}", ROW, r"no column of .*: \{question\} is LaTeX there, \{\{\{question\}\}\} fills it in"),
        ("{question}", {"question": [{"role": "user", "content": "2+2?"}]}, r"row 1: .*\{question\} holds messages"),
    ],
)  # fmt: skip
def test_a_template_that_leaves_out_what_it_should_show_is_refused(
    tmp_path: Path, template: str, row: dict[str, object], message: str
):
    with pytest.raises(UsageError, match=message):
        load(tmp_path, template, row)


def test_a_row_without_what_other_rows_have_is_named(tmp_path: Path):
    with pytest.raises(UsageError, match=r"row 2 has no value in column extra\.q, which data\.prompt_template needs"):
        load(tmp_path, "{extra.q}", {"extra": {"q": "x"}}, {"extra": {"q": None}})
    with pytest.raises(UsageError, match=r"row 2 has no value in column Q\?"):
        load(tmp_path, "{Q?}", {"Q?": "x"}, {"Q": "y"})


def test_one_and_the_same_prompt_for_rows_that_differ_is_refused(tmp_path: Path):
    rows = [{"task": "Add.", "input": number} for number in range(300)]
    with pytest.raises(UsageError, match=r"all 300 rows get one and the same prompt, .*: \{task\} \(.* of task, input"):
        load(tmp_path, "{task}", *rows)
    assert len(load(tmp_path, "{task} {input}", *rows)) == 300
    assert load(tmp_path, "{task}", rows[0], rows[0]) == ["Add."] * 2, "the rows are equal"


def test_rows_that_differ_in_their_tools_alone_have_other_prompts(tmp_path: Path):
    tools = [{"type": "function", "function": {"name": name, "parameters": {}}} for name in "fg"]
    rows = [{"task": "Add.", "tools": [tool]} for tool in tools]
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    tokenizer = make_tokenizer()
    tokenizer.chat_template = "{{ tools[0].function.name }}{{ messages[0].content }}"
    made = load_prompt_rows(DataConfig(dataset=str(path), prompt_template="{task}"), tokenizer)
    assert [tokenizer.decode(row.token_ids) for row in made] == ["fAdd.", "gAdd."]


def test_a_column_that_stays_text_behind_latex_is_named(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    load(tmp_path, r"{question} Put it into \boxed{answer}, not \boxed{{n}}, \text{cm}.", ROW)
    [message] = [record.getMessage() for record in caplog.records if "LaTeX" in record.getMessage()]
    assert "{answer} stays text, for it stands behind LaTeX, though the dataset " in message
    assert message.endswith("such a column; {{{answer}}} fills it in there, {{answer}} is the text")
