"""Questions about pictures, through the real services: the example of colours learns what only its pictures show."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from safetensors.torch import load_file

from tests.e2e.conftest import Stack, read_jsonl
from tests.processes import free_port
from tests.warm_python import warm_python

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(900), pytest.mark.xdist_group("stack")]
EXAMPLE = Path(__file__).parents[2] / "examples/colours"
STEPS = 6


@pytest.fixture(scope="module")
def colours(stack: Stack, tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[object]]:
    """The words of a run of the example, for a server that serves its model."""
    folder = tmp_path_factory.mktemp("colours")
    for script, made in (("make_model.py", "model"), ("make_data.py", "data")):
        done = warm_python.run(EXAMPLE / script, folder / made, folder=folder, timeout_s=120.0)
        assert done.returncode == 0, done.stderr
    with stack.rollout_server(folder / "rollout.log", port := free_port(), model=folder / "model") as server:
        server.wait_until_live()
        given = {
            "model": {"name_or_path": str(folder / "model")},
            "data": {
                "dataset": str(folder / "data/train.jsonl"),
                "eval_dataset": str(folder / "data/held_out.jsonl"),
            },
            "rollout": {"urls": [f"http://127.0.0.1:{port}"]},
            "reward": {"url": stack.reward.url},
            "canary": {"steps": 1},
            "server": {"port": 0},
        }
        (folder / "here.yaml").write_text(yaml.safe_dump(given))
        yield [EXAMPLE / "run.yaml", folder / "here.yaml"]


def finished(log: Path, *words: object) -> tuple[int, str]:
    command = warm_python("-m", "grpo_trainer", *words, output=log, environment={"OMP_NUM_THREADS": "1"})
    try:
        return command.wait(300.0), log.read_text()
    finally:
        command.kill()


def test_a_policy_learns_to_look_and_its_servers_compute_what_it_does(colours: list[object], tmp_path: Path):
    run_dir = tmp_path / "run"
    flags = ("--run_dir", run_dir, "--max_steps", STEPS, "--checkpoint.save_steps", 3, "--eval.eval_steps", 0)
    status, said = finished(tmp_path / "run.log", *colours, *flags)
    assert status == 0, said
    steps = [row for row in read_jsonl(run_dir / "metrics.jsonl") if "loss" in row]
    assert [row["step"] for row in steps] == list(range(1, STEPS + 1))
    assert max(row["canary/logprob_difference_max"] for row in steps) < 1e-4  # one of its prompts has a picture
    accuracies = [row["accuracy"] for row in steps]
    assert accuracies[0] < 0.6 < 0.8 < accuracies[-1], accuracies
    assert all(row["tokens/shared_ratio"] > 0.8 for row in steps), "a group shares its picture"
    first = read_jsonl(run_dir / "completions.jsonl")[0]
    question = {"type": "text", "text": "Which colour?"}
    assert first["prompt"] == [{"role": "user", "content": [{"type": "image"}, question]}]

    status, said = finished(tmp_path / "more.log", *colours, *flags[:2], "--max_steps", STEPS + 1, "--resume")
    assert status == 0, said
    assert read_jsonl(run_dir / "metrics.jsonl")[-1]["step"] == STEPS + 1
    assert (run_dir / "model" / "processor_config.json").is_file(), "the saved model sees images too"

    status, said = finished(tmp_path / "evaluate.log", "evaluate", *colours, "--run_dir", tmp_path / "none")
    assert status == 0, said
    [greedy] = [float(line.split()[1]) for line in said.splitlines() if line.startswith("eval_greedy ")]
    assert greedy > 0.9, said


def test_an_environment_shows_a_picture_in_every_turn(colours: list[object], tmp_path: Path):
    run_dir, game = tmp_path / "run", EXAMPLE / "two_pictures.py"
    words = (*colours, EXAMPLE / "two_pictures.yaml", "--episodes.environment", f"{game}:TwoPictures")
    small = ("--rollout.generation_batch_size", 64, "--eval.eval_steps", 0, "--checkpoint.save_steps", 0)
    flags = ("--run_dir", run_dir, *small, "--max_steps")
    status, said = finished(tmp_path / "run.log", *words, *flags, STEPS)
    assert status == 0, said
    steps = [row for row in read_jsonl(run_dir / "metrics.jsonl") if "loss" in row]
    accuracies = [row["accuracy"] for row in steps]
    assert accuracies[0] < 0.5 < 0.7 < accuracies[-1], accuracies
    lines = [line for line in read_jsonl(run_dir / "completions.jsonl") if len(line["turns"]) == 2]
    shown = {"role": "user", "content": [{"type": "image"}, {"type": "text", "text": "Which colour?"}]}
    assert [message for message in lines[0]["messages"] if message["role"] == "user"] == [shown, shown]

    # Any byte ends a turn, whatever the policy would say: its logprobs are the server's, of both pictures.
    no_bias = '{"123": 0, "112": 0, "107": 0, "1": 0}'
    free = ("--rollout.logit_bias", no_bias, "--rollout.stop_token_ids", list(range(42, 298)))
    whole = ("--algorithm.skip_zero_advantage", "false", "--max_steps", 1, "--run_dir", tmp_path / "free")
    status, said = finished(tmp_path / "free.log", *words, *flags, 1, *free, *whole)
    assert status == 0, said
    [row] = [row for row in read_jsonl(tmp_path / "free" / "metrics.jsonl") if "loss" in row]
    assert row["sampling/sampling_logp_difference/max"] < 1e-4
    assert max(len(line["turns"]) for line in read_jsonl(tmp_path / "free" / "completions.jsonl")) == 2


def test_a_tower_that_is_trained_is_pushed_saved_and_gone_on_with(colours: list[object], tmp_path: Path):
    run_dir = tmp_path / "run"
    flags = ("--run_dir", run_dir, "--model.train_vision_tower", "true", "--checkpoint.save_steps", 1)
    twice = ("--algorithm.num_iterations", 2, "--algorithm.beta", 0.04, "--eval.eval_steps", 0)
    status, said = finished(tmp_path / "run.log", *colours, *flags, *twice, "--max_steps", 3)
    assert status == 0, said
    status, said = finished(tmp_path / "more.log", *colours, *flags, *twice, "--max_steps", 4, "--resume")
    assert status == 0, said
    steps = [row for row in read_jsonl(run_dir / "metrics.jsonl") if "loss" in row]
    assert [row["step"] for row in steps] == [1, 2, 3, 4]
    assert max(row["canary/logprob_difference_max"] for row in steps) < 1e-4
    base = yaml.safe_load(colours[1].read_text())["model"]["name_or_path"]  # type: ignore[attr-defined]
    before, after = (load_file(Path(folder) / "model.safetensors") for folder in (base, run_dir / "model"))
    moved = {name for name, tensor in before.items() if not tensor.equal(after[name])}
    assert {name.split(".")[1] for name in moved if name.startswith("model.")} == {
        "vision_model", "connector", "text_model",
    }  # fmt: skip

    status, said = finished(tmp_path / "other.log", *colours, *flags[:2], "--max_steps", 5, "--resume")
    assert status == 2
    assert "train_vision_tower" in said
    status, said = finished(tmp_path / "after.log", *colours, "--run_dir", tmp_path / "after", "--max_steps", 1)
    assert status != 0
    assert "is not as it was loaded from disk, an earlier push has overwritten it: model.vision_model" in said
    assert "start the server again" in said
