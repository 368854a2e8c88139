"""Turn values in a script that calls `GRPOTrainer` into options, and collect what is found there."""

import ast
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from .python_settings import file_of_module
from .python_source import PythonSource, called, keywords
from .python_values import UnknownValueError, Values

TRAINER = ("model", "reward_funcs", "args", "train_dataset", "eval_dataset", "processing_class")
"""The positions of `GRPOTrainer`."""
_IN_ITS_PLACE = {
    "rollout_func": "episodes play what is not one answer to one prompt (docs/episodes.md)",
    "callbacks": "hooks of your own are `callbacks`, FILE.py:NAME each",
    "optimizers": "the optimizer is that of `optimizer.name`",
    "ref_model": "the reference is the model to start from",
    "reward_processing_classes": "the reward server loads the tokenizer of its reward model",
    "**": "what it holds is not read",
}


@dataclass
class TrlScript:
    """Options of a script, and what only running it would tell."""

    options: dict[str, Any] = field(default_factory=dict)
    """Option → value, as in TRL's YAML file."""
    settings: dict[str, Any] = field(default_factory=dict)
    """Settings of ours that no option of TRL is."""
    episodes: dict[str, Any] = field(default_factory=dict)
    """Settings of the section `episodes`; none where the policy answers once."""
    remarks: list[str] = field(default_factory=list)
    adapter: str | None = None
    """Folder of the adapter that the run starts from."""
    environment_pays: bool = False
    """Whether an environment may have a reward of its own."""
    variables: set[str] = field(default_factory=set)
    """Environment variables that it reads."""
    own_flags: set[str] = field(default_factory=set)
    """Options on the command line that are the script's own."""

    def remark(self, remark: str) -> None:
        if remark not in self.remarks:
            self.remarks.append(remark)


class Reader:
    """`words` and `variables`: what the script is started with, see `Values`."""

    def __init__(
        self,
        source: PythonSource,
        path: Path,
        trainer: ast.Call,
        words: Mapping[str, str],
        variables: Mapping[str, str],
    ):
        self.source, self.path, self.trainer, self.found = source, path, trainer, TrlScript()
        self.script = path.with_suffix(".py")
        """The file that has to be imported: a notebook's code is to be written there."""
        self.given, self.words = keywords(trainer, *TRAINER), words
        source.ends_at = trainer.lineno
        self.values = Values(source, path.parent, words, variables)
        self.found.own_flags = self.values.flags.keys() & words.keys() | (
            {"config"} if self.values.configured else set()
        )
        parsers = [*source.calls("TrlParser"), *source.calls("HfArgumentParser")]
        self.parses = any("GRPOConfig" in ast.unparse(call) for call in parsers)
        """Whether the script takes TRL's options from its command line."""
        if called(trainer) != "GRPOTrainer":
            self.found.remark(f"{called(trainer)} is read as GRPOTrainer: what it does otherwise is not imported")
        if self.parses and not words.keys() - self.found.own_flags:
            self.found.remark("the script reads TRL's options from its command line: give them behind it")
        unnamed = {"**"} if any(given.arg is None for given in trainer.keywords) else set()
        for name in sorted((self.given.keys() | unnamed) & _IN_ITS_PLACE.keys()):
            self.found.remark(f"{name} of GRPOTrainer: {_IN_ITS_PLACE[name]}")

    def set(self, option: str, node: ast.expr | None, where: str) -> None:
        """Set an option to the value of an expression; where that is not known, say so."""
        try:
            value = self.values.of(node)
        except UnknownValueError:
            self.found.options.pop(option, None)
            if option not in self.words and (node is None or not self.is_parsed(node)):
                what = f" {short(node)}" if node is not None else ""
                remedy = "the script computes it; write its value into the run file"
                if node is not None and (flags := self._flags_without_value(node)):
                    remedy = f"give {' '.join(flags)} behind the file, or write its value into the run file"
                self.found.remark(f"{where}{what}: {remedy}")
            return
        if node is not None and self.source.is_conditional(node):
            self.found.remark(f"{where} {short(node)} under a condition: it counts here")
        if value == [] or value is None:
            return
        self.found.options[option] = value

    def _flags_without_value(self, node: ast.expr) -> list[str]:
        """Return the script's own options that a value depends on, and that are not given."""
        parts = [part for part in self.source.behind(node) if isinstance(part, ast.Attribute)]
        names = [part.attr for part in parts if ast.unparse(part.value) in self.source.parsed]
        flags, words = self.values.flags, self.words
        return sorted(
            {f"--{name} …" for name in names if name in flags and name not in words and flags[name].is_required}
        )

    def is_parsed(self, node: ast.expr) -> bool:
        """Return whether the command line says a value: of a part of what TRL's parser returns."""
        names = {part.id for part in ast.walk(node) if isinstance(part, ast.Name)}
        return self.parses and bool(names & self.source.parsed)

    def file_of(self, module: str) -> Path | None:
        """Return the file of a module that lies beside the script, or here."""
        return file_of_module(module, self.path.parent)

    def single(self, node: ast.expr) -> ast.expr:
        """Return what a name is bound to, where that is one thing; else the expression itself."""
        bound = self.source.bound(node.id) if isinstance(node, ast.Name) else []
        return bound[0] if len(bound) == 1 and bound[0] is not None else node

    def elements(self, node: ast.expr, what: str) -> list[ast.expr]:
        """Return the elements of a list, also behind a name and in a `*list`; of one that is made in several places
        none. A `*list` that is not known stays."""
        if isinstance(node, ast.Name) and (parts := self.source.list_of(node.id)) is not None:
            if parts[1]:
                self.found.remark(f"{what} is {node.id} with {', '.join(map(short, parts[1]))} put into it: they count")
            node = ast.List([*parts[0], *parts[1]])
        elif isinstance(node, ast.Name) and self.single(node) is node and self.source.bound(node.id):
            self.found.remark(f"{what} is {node.id}, which the script makes in several places: name them")
            return []
        node = self.single(node)
        if not isinstance(node, ast.List | ast.Tuple):
            return [] if is_none(node) else [node]
        found: list[ast.expr] = []
        for one in node.elts:
            more = self.single(one.value) if isinstance(one, ast.Starred) else None
            found += more.elts if isinstance(more, ast.List | ast.Tuple) else [one]
        return found

    def say_where(self, own: list[str], who: str) -> None:
        """Say what to do about functions of a file that `who` cannot import, or that would train there."""
        names = ", ".join(name.rpartition(":")[2] for name in own if name.startswith(f"{self.script}:"))
        if not names:
            return
        if self.path.suffix != ".py":
            self.found.remark(f"write {names} into {self.script}, for {who}")
        elif any(
            self.trainer in self.source.behind(part) for part in self.source.tree.body if self.runs_at_import(part)
        ):
            self.found.remark(
                f"{who} imports {self.script}, which would train there: put {names} into a file of their own, or the "
                'training under `if __name__ == "__main__":`'
            )

    @staticmethod
    def runs_at_import(part: ast.stmt) -> bool:
        if isinstance(part, ast.If) and "__name__" in ast.unparse(part.test):
            return False
        return not isinstance(part, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)

    def first(self, node: ast.expr | None, *names: str) -> ast.Call | None:
        return next(iter(self.source.calls_behind(node, *names)), None) if node is not None else None


def short(node: ast.AST) -> str:
    text = " ".join(ast.unparse(node).split())
    return text if len(text) <= 60 else f"{text[:60]} …"


def is_none(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and node.value is None
