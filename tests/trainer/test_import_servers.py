"""The servers and processes of an imported command: their lines, ports and numbers."""

from pathlib import Path

import pytest
import yaml
from tests.trainer.importing import TRL, imported

from grpo_trainer.config.run_config import RunConfig

SWIFT = ["--rlhf_type", "grpo", "--model", "m", "--dataset", "d", "--reward_funcs", "format", "--num_generations", "1"]


def test_every_service_has_a_port_of_its_own(capsys: pytest.CaptureFixture[str]):
    text, _ = imported(capsys, "NPROC_PER_NODE=4", "swift", "rlhf", *SWIFT, "--teacher_model", "some/teacher")
    run = RunConfig.model_validate(yaml.safe_load(text))
    assert run.rollout.urls == [f"http://127.0.0.1:{port}" for port in (8000, 8001, 8002, 8003)]
    assert run.teacher is not None
    assert (run.reward.url, run.server.port, run.teacher.url) == (
        "http://127.0.0.1:8004",
        8005,
        "http://127.0.0.1:8006",
    )
    assert "#   grpo-rollout serve some/teacher --port 8006 &\n#   grpo-reward serve --port 8004 &\n" in text
    text, _ = imported(capsys, *SWIFT, "--use_vllm", "true", "--vllm_mode", "server", "--vllm_server_port", "8001")
    run = RunConfig.model_validate(yaml.safe_load(text))
    assert (run.rollout.urls, run.reward.url) == (["http://127.0.0.1:8001"], "http://127.0.0.1:8003")


@pytest.mark.parametrize(
    ("start", "processes", "said"),
    [
        ("CUDA_VISIBLE_DEVICES=0,1,2 trl grpo", 3, ""),
        ("CUDA_VISIBLE_DEVICES=0,1 accelerate launch train.py", 2, ""),
        ("CUDA_VISIBLE_DEVICES=0,1 accelerate launch --num_processes 1 train.py", 1, ""),
        ("CUDA_VISIBLE_DEVICES=0,1 python train.py", 1, ""),
        ("accelerate launch train.py", 1, "accelerate starts one for each GPU of the machine"),
    ],
)
def test_accelerate_starts_a_process_for_each_gpu(
    start: str, processes: int, said: str, capsys: pytest.CaptureFixture[str]
):
    text, notes = imported(capsys, *start.split(), *TRL)
    run = RunConfig.model_validate(yaml.safe_load(text))
    assert (run.deepspeed.nproc_per_node, run.rollout.generation_batch_size) == (processes, 8 * processes)
    assert said in notes


def test_the_server_of_trl_is_one_of_ours_a_replica_with_the_flags_of_vllm(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    file = tmp_path / "train.sh"
    file.write_text(
        "CUDA_VISIBLE_DEVICES=0,1 trl vllm-serve --model m --data-parallel-size 2 --enable_prefix_caching True "
        "--enforce_eager False --log_level warning --vllm_model_impl transformers &\n"
        "nohup env CUDA_VISIBLE_DEVICES=2,3 accelerate launch --num_processes 2 train_grpo.py "
        f"{' '.join(TRL)} --use_vllm --vllm_mode server > log 2>&1 &\n"
    )
    text, said = imported(capsys, file)
    flags = "--enable-prefix-caching --no-enforce-eager --uvicorn-log-level warning --model-impl transformers"
    for line in (
        f"CUDA_VISIBLE_DEVICES=0 grpo-rollout serve m {flags} &",
        f"CUDA_VISIBLE_DEVICES=1 grpo-rollout serve m --port 8001 {flags} &",
        "grpo-reward serve --port 8003 &",
        "CUDA_VISIBLE_DEVICES=2,3 grpo-train RUN.yaml",
    ):
        assert f"#   {line}\n" in text
    assert "--data-parallel-size 2: a server is one replica; there are 2" in said


def test_a_server_on_another_machine_is_said_to_need_a_token(capsys: pytest.CaptureFixture[str]):
    text, said = imported(
        capsys,
        *SWIFT,
        "--use_vllm",
        "true",
        "--vllm_mode",
        "server",
        "--vllm_server_host",
        "10.0.0.7",
        "--vllm_server_port",
        "8000",
    )
    assert "on 10.0.0.7: grpo-rollout serve m --host 0.0.0.0" in text
    assert "weights.host is this machine's" in said
