"""A commit whose workers fail says why, and leaves the server stale: without an engine."""

from typing import Any

import pytest

from grpo_proto.messages.weights import BeginRequest, CommitRequest, Rendezvous, SessionRequest
from grpo_proto.server.refusal import Refusal
from grpo_proto.transport import plan_manifest

pytestmark = [pytest.mark.vllm, pytest.mark.filterwarnings("ignore::DeprecationWarning")]  # vLLM is imported
ANSWERS: dict[str, Any] = {"join": None, "joined": True, "begin": None, "receive": 1, "recover": True, "leave": None}
REASON = "a layer does not serve what was pushed: model.layers.3.mlp"


SESSION = SessionRequest(
    session=1,
    trainer_id="t",
    rendezvous=Rendezvous(host="127.0.0.1", port=1),
    secret="0" * 32,
    rank_offset=1,
    world_size=2,
    backend="gloo",
    deadline_s=5.0,
)


class EngineWhoseWorkerFails:
    """What `Pushes` calls of an engine; the worker cannot finish a push."""

    async def workers(self, call: str, *_: Any) -> list[Any]:
        from grpo_rollout.engine import WorkerError

        if call == "finish":
            raise WorkerError(f"finish: worker 0: RuntimeError: {REASON}")
        return [ANSWERS[call]]

    async def pause(self, kv_cache: str) -> None: ...

    async def abort_all(self) -> None: ...


async def joined(tensors: Any) -> Any:
    from grpo_rollout.pushes import Pushes

    pushes = Pushes(EngineWhoseWorkerFails(), world_size=1, tensors=tensors)  # type: ignore[arg-type]
    await pushes.open_session(SESSION)
    return pushes


async def test_a_worker_that_cannot_finish_is_the_reason_of_the_refusal():
    from grpo_rollout.manifest_check import Expected, ModelTensors

    tensors = ModelTensors({"w": Expected("float32", (4,))}, [])
    pushes = await joined(tensors)
    manifest = plan_manifest([("w", "float32", [4])])
    await pushes.begin(BeginRequest(session=1, version=1, manifest=manifest))
    with pytest.raises(Refusal, match=REASON) as refused:
        await pushes.commit(CommitRequest(session=1, version=1, digest="any", deadline_s=5.0))
    assert refused.value.status == 409
    assert pushes.message().state == "stale"
    assert REASON in (pushes.message().reason or "")
    assert pushes.message().verified_by == []


async def test_a_checkpoint_that_cannot_be_listed_is_the_reason_of_the_refusal():
    pushes = await joined("FileNotFoundError: no model.safetensors")
    with pytest.raises(Refusal, match=r"cannot be listed: FileNotFoundError: no model\.safetensors"):
        await pushes.begin(BeginRequest(session=1, version=1, manifest=plan_manifest([("w", "float32", [4])])))
