"""A model that was trained to score: sequence classification with one label."""

import hashlib
import json
import math
import os
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import BaseModel, Field, ValidationError

from ..adapters.text import text_of
from ..author import Reward, Score, reward
from ..control_marks import without_marks
from ..plugin import PluginError
from ..reward_models import UNNAMED, is_url

if TYPE_CHECKING:
    from ..outgoing import Outgoing

KEY_VARIABLE = "REWARD_MODEL_API_KEY"
MICRO_BATCH_TOKENS = 4096
"""Padding included; a longer text is a micro-batch of its own."""
SAMPLED_NUMBERS = 4096
"""How many numbers of each tensor count for a model's identity; a tensor that has fewer counts whole."""


@reward(columns=[])
async def reward_model(
    completions: list[str],
    *,
    prompts: list[Any],
    timeout_s: float | None = None,
    url: Annotated[str, Field(min_length=1)] | None = None,
    model: str | None = None,
    max_length: Annotated[int, Field(ge=16)] | None = None,
    request_timeout_s: Annotated[float, Field(gt=0)] = 60.0,
    max_concurrency: Annotated[int, Field(ge=1, le=1024)] = 32,
    num_threads: Annotated[int, Field(ge=1, le=256)] = 1,
) -> list[Score]:
    """The logit that a sequence-classification model with one label gives to prompt and completion. Not bounded.

    Two ways to have the model:

    - `url`: a vLLM server, `vllm serve MODEL --runner pooling`; `{url}/classify` is called once per sample,
      `max_concurrency` at a time, with `model` if that is given. The operator has to allow the URL
      (`--allowed-url`); a key comes from the environment variable REWARD_MODEL_API_KEY. Where no logit comes within
      `request_timeout_s` the status is `timeout` or `error`, and the sample has no total; `detail` tells why.
    - without `url`, the model that the operator has loaded: `grpo-reward serve --reward-model FOLDER_OR_HUB_NAME`, with
      `pip install 'grpo-reward[model]'`. Several have names, `--reward-model NAME=MODEL NAME=URL`, and each is the
      reward of its name, with these params. A loaded model runs on the CPU with `num_threads`. All workers share one
      copy of the weights. `--worker-memory-mib` has to hold the weights and 2 GiB: torch and transformers alone take
      1.1 GiB of it.

    A prompt of messages goes through the model's chat template with the completion as the assistant's answer; without
    a template the contents are joined by line breaks. A prompt that is text is put before the completion as it is.

    A text with more than `max_length` tokens (or than the model can take) loses its beginning, since most models read
    the logit at the end. Such a score has `truncated` true in its `log` and 1 in its metrics, others 0, so that the
    mean is their share. With `url` and `max_length` a text of exactly that length counts as truncated: the server does
    not tell. With `url` and without `max_length` a text that is too long is an `error`.

    A special token that a completion writes out, such as `<|im_end|>`, gets a blank unless it stands at the end: the
    completion could otherwise end its turn and write the next one. With `url` that is so for the usual ones.

    All samples of a request are one item for its `timeout_s`; with `url` what has no answer by nine tenths of it is a
    `timeout`.

    Source: the reward model of RLHF (arXiv 2203.02155), section 3.5, with the heads of transformers.
    """
    if url is not None:
        # Here, since its HTTP library takes long to import, and most servers never call another.
        from ..outgoing import Outgoing, in_time

        server = Outgoing(
            url,
            "/classify",
            key_variable=KEY_VARIABLE,
            max_concurrency=max_concurrency,
            timeout_s=request_timeout_s,
        )
        async with server:
            samples = zip(prompts, completions, strict=True)
            work = (_asked(server, model, max_length, *sample) for sample in samples)
            return await in_time(work, timeout_s, "the reward model gave no score")
    if UNNAMED not in _loaded:
        others = f"; those that are loaded are rewards of their own: {', '.join(_loaded)}" if _loaded else ""
        raise ValueError(
            f"no reward model: set url, or start the server with --reward-model FOLDER_OR_HUB_NAME{others}"
        )
    return _loaded[UNNAMED].score(prompts, completions, max_length, num_threads)


def load_model(name: str, model: str) -> Reward:
    """Load the model of the reward `name`; a URL's is elsewhere. Return the reward, whose `code_hash` covers the model.

    Raises PluginError.
    """
    if is_url(model):
        about = f"The logit of the reward model behind {model}, see `reward_model`."
        return _with_model(_named(name, _behind(model), about), model)
    if name not in _loaded:
        _loaded[name] = _LocalModel(model)
    local = _loaded[name]
    if name == UNNAMED:
        return _with_model(_mark(reward_model), local.identity)
    about = f"The logit of the reward model {model}, see `reward_model`."
    return _with_model(_named(name, _of_loaded(local), about), local.identity)


def _named(name: str, function: Callable[..., Any], documentation: str) -> Reward:
    function.__doc__ = documentation
    return _mark(reward(name=name, columns=[])(function))


def _mark(function: Callable[..., Any]) -> Reward:
    mark: Reward = vars(function)["__reward__"]
    return mark


def _with_model(mark: Reward, identity: str) -> Reward:
    """Make the model a part of the reward's code: with another model its scores mean something else."""
    return replace(mark, code_hash=hashlib.sha256(f"{mark.code_hash} {identity}".encode()).hexdigest())


def _of_loaded(local: "_LocalModel") -> Callable[..., Any]:
    def scores_of_loaded(
        completions: list[str],
        *,
        prompts: list[Any],
        max_length: Annotated[int, Field(ge=16)] | None = None,
        num_threads: Annotated[int, Field(ge=1, le=256)] = 1,
    ) -> list[Score]:
        return local.score(prompts, completions, max_length, num_threads)

    return scores_of_loaded


def _behind(url: str) -> Callable[..., Any]:
    async def scores_behind_url(
        completions: list[str],
        *,
        prompts: list[Any],
        timeout_s: float | None = None,
        model: str | None = None,
        max_length: Annotated[int, Field(ge=16)] | None = None,
        request_timeout_s: Annotated[float, Field(gt=0)] = 60.0,
        max_concurrency: Annotated[int, Field(ge=1, le=1024)] = 32,
    ) -> list[Score]:
        return await reward_model(
            completions,
            prompts=prompts,
            timeout_s=timeout_s,
            url=url,
            model=model,
            max_length=max_length,
            request_timeout_s=request_timeout_s,
            max_concurrency=max_concurrency,
        )

    return scores_behind_url


def _result(logit: float, *, tokens: int, truncated: bool) -> Score:
    if not math.isfinite(logit):
        return Score(None, status="error", detail=f"the reward model gave {logit}, which is no logit")
    return Score(logit, log={"tokens": tokens, "truncated": truncated}, metrics={"truncated": float(truncated)})


class _Class(BaseModel):
    probs: list[float]


class _Usage(BaseModel):
    prompt_tokens: int


class _Classes(BaseModel):
    """What vLLM answers; its `probs` are logits when `use_activation` is off."""

    data: Annotated[list[_Class], Field(min_length=1, max_length=1)]
    usage: _Usage


async def _asked(server: "Outgoing", model: str | None, max_length: int | None, prompt: Any, completion: str) -> Score:
    from ..outgoing import NoAnswerError

    completion = without_marks(completion, keep_endings=True)
    body: dict[str, Any] = {"use_activation": False}
    if isinstance(prompt, list):
        body["messages"] = _dialogue(prompt, completion)
    else:
        body["input"] = (prompt or "") + completion
    if model is not None:
        body["model"] = model
    if max_length is not None:
        body |= {"truncate_prompt_tokens": max_length, "truncation_side": "left"}
    try:
        answer = _Classes.model_validate_json(await server.post(body))
    except NoAnswerError as error:
        return Score(None, status=error.status, detail=f"the reward model gave no score: {error}")
    except ValidationError:
        return Score(None, status="error", detail="the answer is not one of vLLM's /classify")
    logits, tokens = answer.data[0].probs, answer.usage.prompt_tokens
    if len(logits) != 1:
        return Score(None, status="error", detail=f"the model has {len(logits)} labels; a reward model has one")
    return _result(logits[0], tokens=tokens, truncated=max_length is not None and tokens >= max_length)


def _dialogue(messages: list[Any], completion: str) -> list[Any]:
    return [*messages, {"role": "assistant", "content": completion}]


def _texts(messages: list[Any]) -> list[Any]:
    """The same messages with texts for contents: templates of classification models know no parts and no null."""
    return [message | {"content": text_of(message["content"])} for message in messages]


class _LocalModel:
    """A classification model of transformers in this process, for CPUs.

    It is loaded before workers are forked, in one thread: a pool of OpenMP threads would be lost in the forked process,
    which would then wait for them for ever.
    """

    def __init__(self, name: str):
        """Raises PluginError."""
        os.environ |= {"TOKENIZERS_PARALLELISM": "false", "OPENBLAS_NUM_THREADS": "1"}  # what they read when imported
        try:
            import torch
            from transformers import AutoModelForSequenceClassification, AutoTokenizer
            from transformers.utils.logging import disable_progress_bar
        except ImportError as error:
            raise PluginError(f"--reward-model: {error}: pip install 'grpo-reward[model]'") from error
        torch.set_num_threads(1)
        disable_progress_bar()  # it has a thread
        self._torch = torch
        try:
            self._tokenizer = AutoTokenizer.from_pretrained(name)
            self._model, loading = AutoModelForSequenceClassification.from_pretrained(name, output_loading_info=True)
            written, _ = type(self._model.config).get_config_dict(name)
        except Exception as error:
            raise PluginError(f"--reward-model {name} cannot be loaded: {str(error)[:500]}") from error
        if loading["missing_keys"]:
            # They would be random numbers: it is a language model without a head for scores.
            missing = ", ".join(sorted(loading["missing_keys"])[:5])
            raise PluginError(f"--reward-model {name} is no sequence-classification model: it lacks {missing}")
        if self._model.config.num_labels != 1:
            raise PluginError(
                f"--reward-model {name} has {self._model.config.num_labels} labels; a reward model has one"
            )
        self._model.eval()
        config = self._model.config.get_text_config()
        self._pad_token_id: int | None = config.pad_token_id
        # Either may be missing, and either may be the smaller one.
        self._limit: int = min(getattr(config, "max_position_embeddings", math.inf), self._tokenizer.model_max_length)
        self._tokenizer.truncation_side = "left"
        tokens = sorted(self._tokenizer.all_special_tokens, key=len, reverse=True)
        self._special_token = re.compile("|".join(map(re.escape, tokens)) or r"(?!)")
        self.identity = self._identity(written)

    def _identity(self, written: dict[str, Any]) -> str:
        """Return a digest of the model's contents, so that its folder may move: the configuration as it is `written`,
        what the tokenizer makes of a text, and samples of each tensor, because models of one family differ in their
        numbers alone."""
        digest = hashlib.sha256()
        config = {name: value for name, value in written.items() if name not in _NOT_OF_THE_MODEL}
        tokenizer = self._tokenizer
        vocabulary = sorted(tokenizer.get_vocab().items())
        texts = [config, vocabulary, tokenizer.chat_template, tokenizer.all_special_tokens, self._limit]
        digest.update(json.dumps(texts, sort_keys=True, default=str).encode())
        for name, tensor in sorted(self._model.state_dict().items()):
            numbers = tensor.flatten()
            sample = numbers[:: -(-numbers.numel() // SAMPLED_NUMBERS) or 1].contiguous()
            digest.update(f"{name} {list(tensor.shape)} {tensor.dtype}".encode())
            digest.update(sample.view(self._torch.uint8).numpy().tobytes())
        return digest.hexdigest()

    def score(
        self, prompts: Sequence[Any], completions: Sequence[str], max_length: int | None, num_threads: int
    ) -> list[Score]:
        limit = min(self._limit, max_length or self._limit)
        results = [Score(None, detail="prompt and completion are empty")] * len(completions)
        encoded: dict[int, tuple[list[int], bool]] = {}
        for row, sample in enumerate(zip(prompts, completions, strict=True)):
            try:
                token_ids, truncated = self._encoded(*sample, limit)
            except Exception as error:  # a chat template may raise anything
                results[row] = Score(None, detail=f"the chat template refuses the prompt: {error}")
                continue
            if token_ids:
                encoded[row] = token_ids, truncated
        logits = self._logits([token_ids for token_ids, _ in encoded.values()], num_threads)
        for (row, (token_ids, truncated)), logit in zip(encoded.items(), logits, strict=True):
            results[row] = _result(logit, tokens=len(token_ids), truncated=truncated)
        return results

    def _encoded(self, prompt: Any, completion: str, limit: int) -> tuple[list[int], bool]:
        """At most `limit` token ids, and whether there were more."""
        completion = without_marks(completion, self._special_token, keep_endings=True)
        special = True
        if isinstance(prompt, list) and self._tokenizer.chat_template:
            text = self._tokenizer.apply_chat_template(_texts(_dialogue(prompt, completion)), tokenize=False)
            special = False  # the template has them
        elif isinstance(prompt, list):
            text = "".join(f"{text_of(message['content'])}\n" for message in prompt) + completion
        else:
            text = (prompt or "") + completion
        token_ids = self._tokenizer.encode(text, add_special_tokens=special)
        if len(token_ids) <= limit:
            return token_ids, False
        # The tokenizer's own way of cutting keeps the special tokens that some models read.
        return self._tokenizer.encode(text, add_special_tokens=special, truncation=True, max_length=limit), True

    def _logits(self, texts: Sequence[list[int]], num_threads: int) -> list[float]:
        """One for each of `texts`, which are token ids."""
        torch = self._torch
        if torch.get_num_threads() != num_threads:
            torch.set_num_threads(num_threads)
        logits = [math.nan] * len(texts)
        try:
            with torch.inference_mode():
                for rows in self._micro_batches(texts):
                    found = self._model(**self._padded([texts[row] for row in rows])).logits[:, 0].float().tolist()
                    for row, logit in zip(rows, found, strict=True):
                        logits[row] = logit
        except RuntimeError as error:
            if "allocate memory" in str(error):
                raise MemoryError("raise --worker-memory-mib, or lower max_length") from None
            raise
        return logits

    def _padded(self, texts: Sequence[list[int]]) -> dict[str, Any]:
        """`input_ids` and `attention_mask`, both of shape (texts, longest)."""
        longest = max(map(len, texts))
        padding = [longest - len(text) for text in texts]
        input_ids = [text + [self._pad_token_id or 0] * missing for text, missing in zip(texts, padding, strict=True)]
        mask = [[1] * len(text) + [0] * missing for text, missing in zip(texts, padding, strict=True)]
        return {"input_ids": self._torch.tensor(input_ids), "attention_mask": self._torch.tensor(mask)}

    def _micro_batches(self, texts: Sequence[list[int]]) -> Iterator[list[int]]:
        """Rows of similar length together, at most MICRO_BATCH_TOKENS, one by one when the model cannot be padded."""
        rows: list[int] = []
        for row in sorted(range(len(texts)), key=lambda row: len(texts[row])):
            fits = (len(rows) + 1) * len(texts[row]) <= MICRO_BATCH_TOKENS
            if rows and not (fits and self._pad_token_id is not None):
                yield rows
                rows = []
            rows.append(row)
        if rows:
            yield rows


_NOT_OF_THE_MODEL = {"_commit_hash", "_name_or_path", "transformers_version"}
_loaded: dict[str, _LocalModel] = {}
"""Reward → its model. It is filled before workers are forked, which share the weights."""
