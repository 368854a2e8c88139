"""The files of a saved model: its weights, configuration and tokenizer, and the small files of the model it began as.

One function writes them for a run, a cold start and a quantized base. Without tensors it writes all but the weights:
whoever trains calls it so before the first step, and what cannot be saved is found before anything is learnt.

Training changes the weights alone, so small files that neither transformers' model nor its tokenizer writes are kept,
byte for byte: those of a vision-language model's processor, chat templates, code, licences. So is
generation_config.json, which transformers reads with a warning and then refuses to write when it has a temperature
without do_sample. All are read at the start: the folder of the first model may be gone when the last is written.
"""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from .atomic_file import WRITE_ERRORS
from .errors import TrainerError, UsageError, model_error_class

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

GENERATION = "generation_config.json"
NF4_MARK = "nf4.json"
"""Says which weights of a quantized base have the values of NF4."""
KEPT_SUFFIXES = (".json", ".jinja", ".txt", ".model", ".tiktoken", ".py")
KEPT_NAMES = ("LICENSE*", "LICENCE*", "NOTICE*", "COPYING*", "USE_POLICY*")
LEFT_OUT = ("*.index.json", "adapter_config.json", "trainer_state.json", "*_results.json", NF4_MARK)
"""What is of the old weights, or of how they were trained."""
_OS_ERROR = re.compile(r"\(os error (\d+)\)")
LARGEST_KEPT = 64 * 2**20
"""Bytes: more than a vocabulary of 250,000 tokens takes, and less than weights."""


def refuse_missing_folder(name_or_path: str) -> None:
    """Raise UsageError for what can only be a folder, and is none: a Hub would be asked in vain."""
    is_path = name_or_path.startswith(("/", ".", "~")) or name_or_path.endswith("/") or name_or_path.count("/") > 1
    if is_path and not Path(name_or_path).is_dir():
        raise UsageError(
            f"there is no folder {name_or_path}, seen from {Path.cwd()}",
            hint="model.name_or_path is a folder, or a model of the Hugging Face Hub",
        )


def what_it_is(name_or_path: str) -> str | None:
    """What a folder without a model is, and what to name in its place; None where nothing is known of it."""
    folder = Path(name_or_path)
    if not folder.is_dir():
        return f"there is no folder {name_or_path} in {Path.cwd()}, so it was looked for on the Hugging Face Hub"
    if not any((folder / name).exists() for name in ("config.json", "adapter_config.json", "state.json")):
        return f"the folder {name_or_path} has no config.json, so it holds no model"
    if (folder / "state.json").is_file() and (folder / "manifest.json").is_file():
        return "it is a checkpoint of a run, and no model yet: docs/trainer.md says how to go back to it and write one"
    try:
        base = json.loads((folder / "adapter_config.json").read_text()).get("base_model_name_or_path")
    except (OSError, ValueError, AttributeError):
        return None
    if not base:
        return None
    return (
        f"it is an adapter of {base}: set model.name_or_path to {base} and model.lora.adapter to {name_or_path}, or "
        "take the folder that grpo-train merge-adapter writes"
    )


@dataclass(frozen=True)
class ModelFiles:
    """What is saved beside the weights of a model that began as `source`, a folder or a Hugging Face name.

    `ends`: ids of tokens at which a server has to stop, beside those of the first model.
    """

    source: str
    tokenizer: "PreTrainedTokenizerBase"
    kept: Mapping[str, bytes] = field(repr=False)
    ends: Sequence[int] = ()

    @classmethod
    def of(cls, source: str, tokenizer: "PreTrainedTokenizerBase") -> Self:
        """Read the small files of `source`. Raises UsageError or UnavailableError when they cannot be read."""
        try:
            return cls(source, tokenizer, {path.name: path.read_bytes() for path in _small_files(_folder_of(source))})
        except OSError as error:
            raise model_error_class(source, error)(f"the small files of {source} cannot be read: {error}") from error

    def write(self, folder: Path, model: "PreTrainedModel", state: dict[str, Any] | None) -> None:
        """Write `model` with the tensors of `state` into `folder`; None: its own; {}: none, all but the weights.

        Raises UsageError for what transformers cannot save, and WRITE_ERRORS.
        """
        from transformers import GenerationConfig

        own, model.generation_config = model.generation_config, GenerationConfig()
        try:
            with self._naming("model"):
                model.save_pretrained(folder, state_dict=state)
        finally:
            model.generation_config = own
        self.write_tokenizer(folder)
        for name, content in self.kept.items():
            if not (folder / name).exists():
                (folder / name).write_bytes(content)
        if (folder / GENERATION).exists():  # not of a model that cannot generate
            with self._naming("model"):
                (folder / GENERATION).write_bytes(self._generation(own))

    def write_tokenizer(self, folder: Path) -> None:
        """Write the tokenizer alone, as beside an adapter. Raises UsageError when it cannot be saved, and OSError."""
        with self._naming("tokenizer"):
            self.tokenizer.save_pretrained(folder)

    def _generation(self, own: Any) -> bytes:
        """Return the first model's file; where it has none, what transformers made of its configuration."""
        content = self.kept.get(GENERATION) or own.to_json_string().encode()
        settings = json.loads(content)
        before = settings.get("eos_token_id")
        known = [] if before is None else before if isinstance(before, list) else [before]
        new = [end for end in self.ends if end not in known]
        if not new:
            return content
        return (json.dumps(settings | {"eos_token_id": [*known, *new]}, indent=2, ensure_ascii=False) + "\n").encode()

    @contextmanager
    def _naming(self, part: str) -> Iterator[None]:
        try:
            yield
        except (*WRITE_ERRORS, TrainerError):
            raise
        except Exception as error:  # transformers, and the model's own code, raise anything
            if found := _OS_ERROR.search(str(error)):  # a library in Rust has no class for it
                raise OSError(int(found[1]), str(error)) from error
            raise UsageError(
                f"the {part} of {self.source} cannot be saved: {type(error).__name__}: {error}",
                hint=f"mend the files of the {part} in a copy of {self.source}, and train that",
            ) from error


def _folder_of(source: str) -> Path:
    if Path(source).is_dir():
        return Path(source)
    from huggingface_hub import snapshot_download

    patterns = [*(f"*{suffix}" for suffix in KEPT_SUFFIXES), *KEPT_NAMES]
    return Path(snapshot_download(source, allow_patterns=patterns, ignore_patterns=["*/*", *LEFT_OUT]))


def _small_files(folder: Path) -> Iterator[Path]:
    """Yield the files to keep: of the folder itself, not of folders inside, and no hidden ones."""
    for path in sorted(folder.iterdir()):
        named = path.suffix in KEPT_SUFFIXES or any(path.match(pattern) for pattern in KEPT_NAMES)
        is_kept = named and not path.name.startswith(".") and not any(path.match(pattern) for pattern in LEFT_OUT)
        if is_kept and path.is_file() and path.stat().st_size <= LARGEST_KEPT:
            yield path
