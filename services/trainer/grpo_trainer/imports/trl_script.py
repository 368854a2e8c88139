"""What a script gives to TRL's `GRPOTrainer`, as the options of `trl grpo`. The script is read, never run."""

import ast
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..errors import UsageError
from .python_source import SUFFIXES, PythonSource, UnknownValueError, called, keywords, python_source

_LORA = {
    "r": "lora_r",
    "lora_alpha": "lora_alpha",
    "lora_dropout": "lora_dropout",
    "target_modules": "lora_target_modules",
    "target_parameters": "lora_target_parameters",
    "modules_to_save": "lora_modules_to_save",
    "use_rslora": "use_rslora",
    "use_dora": "use_dora",
}
_DEFAULTS = {
    "LoraConfig": {"lora_r": 8, "lora_alpha": 8, "lora_dropout": 0.0},
    "get_peft_model": {"lora_r": 16, "lora_alpha": 16, "lora_dropout": 0.0},
}
"""Those of PEFT and of Unsloth; `trl grpo` has others."""
_OF_LOADING = {
    "torch_dtype": "dtype",
    "dtype": "dtype",
    "attn_implementation": "attn_implementation",
    "trust_remote_code": "trust_remote_code",
    "load_in_4bit": "load_in_4bit",
}
_IN_ITS_PLACE = {
    "tools": "name the functions in episodes.tools, FILE.py:NAME each (docs/episodes.md)",
    "environment_factory": "name the class in episodes.environment_factory, FILE.py:NAME (docs/episodes.md)",
    "rollout_func": "episodes play what is not one answer to one prompt (docs/episodes.md)",
    "callbacks": "hooks of your own are `callbacks`, FILE.py:NAME each",
    "optimizers": "the optimizer is AdamW, with the settings of `optimizer`",
    "ref_model": "the reference is the model to start from",
    "reward_processing_classes": "the reward server loads the tokenizer of its reward model",
}
_ROWS = "rows.jsonl"
"""Stands where the script makes its rows itself."""


@dataclass
class TrlScript:
    """Option → value, as in TRL's YAML file, and what only running the script would tell."""

    options: dict[str, Any] = field(default_factory=dict)
    remarks: list[str] = field(default_factory=list)


def calls_grpo_trainer(path: Path) -> bool:
    """Whether a file is a script that makes a trainer; one that is not here is none. Raises UsageError."""
    return path.suffix in SUFFIXES and path.is_file() and any(python_source(path).calls("GRPOTrainer"))


def read_trl_script(path: Path) -> TrlScript:
    """Read what `GRPOTrainer` and `GRPOConfig` are given. Raises UsageError for no trainer and for several."""
    source = python_source(path)
    trainers = list(source.calls("GRPOTrainer"))
    if len(trainers) != 1:
        raise UsageError(
            f"{path} makes {len(trainers) or 'no'} GRPOTrainer, and a run file is one run",
            hint="give the script that makes one, or the options of `trl grpo`",
        )
    return _Reader(source, path, keywords(trainers[0])).script(trainers[0])


class _Reader:
    def __init__(self, source: PythonSource, path: Path, given: dict[str, ast.expr]):
        self.source, self.path, self.given, self.found = source, path, given, TrlScript()
        self.parses = any(source.calls("TrlParser", "HfArgumentParser"))
        """Whether the script takes TRL's options: what it does not say itself is then said on the command line."""

    def script(self, trainer: ast.Call) -> TrlScript:
        if called(trainer) != "GRPOTrainer":
            self._remark(f"{called(trainer)} is read as GRPOTrainer: what it does otherwise is not imported")
        if self.parses:
            self._remark("the script reads TRL's options from its command line: give them behind it")
        self._config()
        self._model()
        self._adapter()
        self._rows()
        self._rewards(trainer)
        for name in sorted(self.given.keys() & _IN_ITS_PLACE.keys()):
            self._remark(f"{name} of GRPOTrainer: {_IN_ITS_PLACE[name]}")
        return self.found

    def _remark(self, remark: str) -> None:
        if remark not in self.found.remarks:
            self.found.remarks.append(remark)

    def _set(self, option: str, node: ast.expr, where: str) -> None:
        try:
            value = self.source.value(node)
        except UnknownValueError:
            if self.parses:
                return
            text = ast.unparse(node)
            short = text if len(text) <= 60 else f"{text[:60]} …"
            self._remark(f"{where} {short}: the script computes it; write its value into the run file")
            return
        if value is not None:
            self.found.options.setdefault(option, value)

    def _config(self) -> None:
        call = self._first(self.given.get("args"), "GRPOConfig")
        for given in call.keywords if call else ():
            if given.arg is None:
                self._remark(f"GRPOConfig gets **{ast.unparse(given.value)}, which is not read")
            else:
                self._set(given.arg, given.value, f"GRPOConfig({given.arg}=…) is")
        if "reward_weights" in self.given:  # of earlier versions
            self._set("reward_weights", self.given["reward_weights"], "reward_weights is")
        loads = self.found.options.pop("model_init_kwargs", None)
        for name, value in loads.items() if isinstance(loads, dict) else ():
            self.found.options.setdefault(_OF_LOADING.get(name, f"model_init_kwargs.{name}"), value)

    def _model(self) -> None:
        model = self.given.get("model")
        if model is None:
            return
        loaded = self._first(model, "from_pretrained")
        if loaded is None:
            self._set("model_name_or_path", model, "the model is")
            return
        named = keywords(loaded)
        name = next(
            (named[key] for key in ("pretrained_model_name_or_path", "model_name") if key in named),
            loaded.args[0] if loaded.args else None,
        )
        if name is not None:
            self._set("model_name_or_path", name, "the model is")
        for key in sorted(named.keys() & _OF_LOADING.keys()):
            self._set(_OF_LOADING[key], named[key], f"{called(loaded)}({key}=…) is")

    def _adapter(self) -> None:
        """An adapter of PEFT, or of Unsloth, whose `get_peft_model` takes the same arguments."""
        config = self._first(self.given.get("peft_config"), "LoraConfig")
        if config is None and "model" in self.given:
            made = self._first(self.given["model"], "get_peft_model")
            config = (self._first(made, "LoraConfig") or made) if made is not None else None
        if config is None:
            return
        self.found.options.setdefault("use_peft", True)
        for key, node in keywords(config).items():
            if key in _LORA:
                self._set(_LORA[key], node, f"{called(config)}({key}=…) is")
        for option, value in _DEFAULTS[called(config)].items():
            self.found.options.setdefault(option, value)
        quantized = self._first(self.given.get("quantization_config"), "BitsAndBytesConfig")
        for key, node in (keywords(quantized) if quantized else {}).items():
            if key in ("load_in_4bit", "load_in_8bit"):
                self._set(key, node, f"BitsAndBytesConfig({key}=…) is")

    def _rows(self) -> None:
        self._dataset(self.given.get("train_dataset"), "dataset_train_split")
        if "eval_dataset" in self.given:
            self._dataset(self.given["eval_dataset"], "dataset_test_split")

    def _dataset(self, node: ast.expr | None, split_option: str) -> None:
        """The dataset that is loaded, its split, and a prompt that is made in the common way."""
        training = split_option == "dataset_train_split"
        calls = list(self.source.behind(node)) if node is not None else []
        loaded = next((call for call in calls if called(call) == "load_dataset" and call.args), None)
        if loaded is None:
            if training and not self.parses:
                self.found.options["dataset_name"] = _ROWS
                self._remark(f"the script makes its rows itself: write them into {_ROWS}")
            return
        named = keywords(loaded)
        positions = dict(zip(("path", "name"), loaded.args, strict=False)) | named
        if training:
            self._set("dataset_name", positions.get("data_files") or positions["path"], "the dataset is")
            if "name" in positions:
                self._set("dataset_config", positions["name"], "the dataset's configuration is")
        if "split" in positions:
            self._set(split_option, positions["split"], "the split is")
        elif isinstance(node, ast.Subscript):
            self._set(split_option, node.slice, "the split is")
        self._slice(split_option)
        if training:
            for call in calls:
                if called(call) in ("map", "filter", "select", "train_test_split"):
                    self._changed(call)

    def _slice(self, split_option: str) -> None:
        """`train[:500]` is `NAME#500`."""
        given = self.found.options.get(split_option, "")
        if isinstance(given, list):  # of one call that loads both
            given = self.found.options[split_option] = given[-1] if split_option == "dataset_test_split" else given[0]
        name, bracket, end = str(given).partition("[:")
        if not bracket:
            return
        self.found.options[split_option] = name
        count = end.removesuffix("]")
        if count.isdecimal() and split_option == "dataset_train_split":
            last = "dataset_config" if "dataset_config" in self.found.options else "dataset_name"
            self.found.options[last] = f"{self.found.options.get(last)}#{count}"
        else:
            self._remark(f"of {name} the whole split is read, not [:{end}")

    def _changed(self, call: ast.Call) -> None:
        function = call.args[0] if call.args else keywords(call).get("function")
        if called(call) == "map" and function is not None and self._prompt(function):
            return
        what = f"{called(call)}({ast.unparse(function)[:60] if function is not None else ''})"
        self._remark(
            f"the script changes its rows, by {what} in line {call.lineno}: make the prompt by data.prompt_template, "
            "or by a recipe of your own (docs/trainer.md)"
        )

    def _prompt(self, function: ast.expr) -> bool:
        """Whether a function makes messages of one column, behind a system prompt, and nothing else of the prompt."""
        body = self.source.functions.get(getattr(function, "id", "")) or function
        for made in ast.walk(body):
            if isinstance(made, ast.Dict) and len(messages := list(_messages(made))) in (1, 2):
                *system, (role, asked) = messages
                column = asked.slice if isinstance(asked, ast.Subscript) else None
                if role == "user" and column is not None and all(role == "system" for role, _ in system):
                    self._set("dataset_prompt_column", column, "the column of the question is")
                    for _, text in system:
                        self._set("system_prompt", text, "the system prompt is")
                    return True
        return False

    def _rewards(self, trainer: ast.Call) -> None:
        given = self.given.get("reward_funcs")
        if given is None:
            return
        if isinstance(given, ast.Name) and len(self.source.bound[given.id]) == 1:
            given = self.source.bound[given.id][0]
        if isinstance(given, ast.Call) and self.parses:
            return
        names, own = [], []
        for node in given.elts if isinstance(given, ast.List | ast.Tuple) else [given]:
            name = getattr(node, "id", "") or (called(node) if isinstance(node, ast.Call) else "")
            if name in self.source.functions:
                own.append(name)
                names.append(f"{self.path.with_suffix('.py')}:{name}")
            elif name in self.source.imported:
                module, there = self.source.imported[name]
                names.append(there if module.partition(".")[0] == "trl" else f"{module}.{there}")
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                self.found.options["reward_model_name_or_path"] = node.value
            else:
                self._remark(f"reward {ast.unparse(node)[:60]} is no function of a file: write one")
            if isinstance(node, ast.Call):
                self._remark(f"reward {ast.unparse(node)[:60]}: its arguments are not read: reward.params")
        if names:
            self.found.options["reward_funcs"] = names
        if own and self.path.suffix != ".py":
            self._remark(f"write {', '.join(own)} into {self.path.with_suffix('.py')}, for the reward server")
        elif own and any(trainer in ast.walk(part) for part in self.source.tree.body if _runs_at_import(part)):
            self._remark(
                f"the reward server imports {self.path}, which would train there: put {', '.join(own)} into a file of "
                'their own, or the training under `if __name__ == "__main__":`'
            )

    def _first(self, node: ast.expr | None, name: str) -> ast.Call | None:
        if node is None:
            return None
        return next((call for call in self.source.behind(node) if called(call) == name), None)


def _messages(made: ast.Dict) -> Iterator[tuple[str, ast.expr]]:
    """Role and content of each message of a dictionary's `prompt`."""
    prompt = _parts(made).get("prompt")
    for message in prompt.elts if isinstance(prompt, ast.List) else ():
        parts = _parts(message) if isinstance(message, ast.Dict) else {}
        if isinstance(role := parts.get("role"), ast.Constant) and "content" in parts:
            yield str(role.value), parts["content"]


def _parts(made: ast.Dict) -> dict[Any, ast.expr]:
    pairs = zip(made.keys, made.values, strict=True)
    return {key.value: value for key, value in pairs if isinstance(key, ast.Constant)}


def _runs_at_import(part: ast.stmt) -> bool:
    if isinstance(part, ast.If) and "__name__" in ast.unparse(part.test):
        return False
    return not isinstance(part, ast.FunctionDef | ast.ClassDef)
