"""One full example of every message, by name. The golden files under `golden/` are these, as they travel."""

from pydantic import BaseModel

from grpo_proto import (
    PROTOCOL_VERSION,
    AbortRequest,
    BeginRequest,
    CloseRequest,
    CommitRequest,
    Completion,
    ErrorBody,
    ErrorDetail,
    Health,
    Manifest,
    Message,
    Prompt,
    Rendezvous,
    RenewRequest,
    RewardDescription,
    RewardInfo,
    RewardList,
    RewardScore,
    RewardSpec,
    RolloutGroup,
    RolloutInfo,
    RolloutRequest,
    RolloutResponse,
    Sampling,
    ScoreRequest,
    ScoreResponse,
    ScoreResult,
    ScoreSample,
    SessionRequest,
    TensorSpec,
    TrainerInfo,
    WeightState,
)
from grpo_proto.messages.base import ContentPart, FunctionCall, ToolCall
from grpo_proto.messages.logprobs import GivenSequence, LogprobsRequest, LogprobsResponse, SequenceLogprobs
from grpo_proto.messages.rollout import AdapterLimits, StructuredOutputs
from grpo_proto.messages.sessions import (
    CloseSession,
    GeneratedTurn,
    GenerateTurn,
    OpenSession,
    RecordedSegment,
    RecordedTurn,
    SessionLimits,
    SessionOpened,
    SessionReward,
    SessionState,
    SessionStats,
    Trajectory,
    TurnUsage,
)
from grpo_proto.messages.sessions_info import SessionsInfo, TemplateFindings
from grpo_proto.messages.weights import LastPush

SESSION = 1795172400000
_message = Message(role="user", content="Using the numbers [44, 19, 35], create an equation that equals 98.")
_function = FunctionCall(name="add", arguments='{"numbers": [44, 19]}')
_call = ToolCall(id="call-1", function=_function)
_part = ContentPart(type="text", text="What is in the picture?")
_picture = ContentPart.model_validate({"type": "image_url", "image_url": {"url": "data:image/png;base64,AA=="}})
_adapters = AdapterLimits(max_loras=4, max_lora_rank=64, max_cpu_loras=8)
_sample = ScoreSample(
    id="s-1",
    completion="<think>…</think><answer>44 + 19 + 35</answer>",
    prompt=[_message],
    columns={"nums": [44, 19, 35], "target": 98},
    completion_token_ids=[5, 6],
    truncated=False,
)
_spec = RewardSpec(name="format", weight=0.1, params={"require_think": False})
_score = RewardScore(score=1.0, status="ok", log={"expression": "44 + 19 + 35"}, metrics={"length": 12.0})
_unscored = RewardScore(score=None, status="timeout", detail="no score within 10 s")
_result = ScoreResult(id="s-1", total=1.0, rewards={"countdown": _score, "format": _unscored})
_description = RewardDescription(
    name="length",
    documentation="1 when the completion is long enough.",
    params_schema={"type": "object", "properties": {"min_chars": {"type": "integer", "default": 1024}}},
    columns=[],
    code_hash="0" * 64,
    batch=True,
)
_sampling = Sampling(
    temperature=0.7, top_p=0.9, top_k=40, min_p=0.05, repetition_penalty=1.1, max_tokens=64, stop=["\n"], logprobs=True
)
_structured = StructuredOutputs(regex="<answer>[0-9]+</answer>")
_shaped = Sampling(
    presence_penalty=0.5, frequency_penalty=-0.5, max_tokens=64, min_tokens=8, logit_bias={5: -2.0}, bad_words=["So,"]
)
_completion = Completion(
    token_ids=[5, 6], logprobs=[-0.1, -2.3], text="7 8", finish_reason="stop", versions=[(12, 1), (13, 1)]
)
_group = RolloutGroup(prompt_token_ids=[1, 2], completions=[_completion])
_tensor = TensorSpec(name="lm_head.weight", dtype="bfloat16", shape=[4, 8], bucket=0, offset=16)
_manifest = Manifest(tensors=[_tensor], bucket_bytes=[80])
_push = LastPush(seconds=0.35, bytes=80, digest="ab" * 32)
_state = WeightState(
    state="stale",
    version=12,
    session=SESSION,
    newest_session=SESSION,
    trainer_id="run-1",
    reason="cut off",
    last_push=_push,
)
_rendezvous = Rendezvous(host="10.0.0.1", port=29500)
_given = GivenSequence(token_ids=[1, 2, 5, 6], num_prompt_tokens=2)
_scored = SequenceLogprobs(logprobs=[-0.1, -2.3], version=12)
_error = ErrorDetail(type="busy", message="64 requests are being scored", hint="wait", retryable=True)
_limits = SessionLimits(max_turns=8, max_sampled_tokens=1024)
_usage = TurnUsage(prompt_tokens=12, completion_tokens=2)
_recorded_turn = RecordedTurn(
    turn=0,
    start=2,
    end=4,
    versions=[(12, 2)],
    finish_reason="stop",
    masked="undelivered",
    reward={"won": 1.0},
    label="gpt-4o",
    text="4",
)
_recorded_segment = RecordedSegment(
    token_ids=[1, 2, 5, 2],
    turns=[_recorded_turn],
    logprobs=[-0.1, -0.2],
    parent=0,
    fork_at=2,
    fork_reason="branch",
    images=["d1"],
    image_starts=[1],
    messages=[
        {"role": "user", "content": [{"type": "text", "text": "2 + 2?"}, {"type": "image", "image": "d1"}]},
        {"role": "assistant", "content": "4"},
    ],
)
_session_stats = SessionStats(
    turns=1, forks=1, fork_reasons={"branch": 1}, sampled=2, masked={"undelivered": 2}, overruled=1, control_tokens=0
)
_findings = TemplateFindings(usable=True, end_token="<|im_end|>", keeps_prefix=True)

EXAMPLES: dict[str, BaseModel] = {
    type(message).__name__: message
    for message in (
        _message,
        _part,
        _function,
        _call,
        _sample,
        _spec,
        _score,
        _result,
        _description,
        _sampling,
        _structured,
        _completion,
        _group,
        _tensor,
        _manifest,
        _push,
        _state,
        _rendezvous,
        _error,
        ErrorBody(error=_error),
        Health(ok=False, detail="no worker process is running"),
        ScoreRequest(
            rewards=[RewardSpec(name="countdown"), _spec], samples=[_sample], step=12, timeout_s=10.0, deadline_s=60.0
        ),
        ScoreResponse(results=[_result], elapsed_s=0.004),
        RewardList(rewards=[_description]),
        RewardInfo(version="0.1.0", protocol_version=PROTOCOL_VERSION, rewards={"length": "0" * 64}, workers=2),
        Prompt(token_ids=[1, 2], seed=7),
        RolloutRequest(
            request_id="r-1",
            prompts=[Prompt(token_ids=[1, 2], seed=7), Prompt(messages=[_message])],
            n=8,
            sampling=_sampling,
            session=SESSION,
            min_version=12,
            deadline_s=600,
        ),
        RolloutResponse(groups=[_group], session=SESSION, server_id="server-1"),
        _given,
        _scored,
        LogprobsRequest(sequences=[_given], deadline_s=600),
        LogprobsResponse(sequences=[_scored], session=SESSION, server_id="server-1"),
        _adapters,
        RolloutInfo(
            version="0.1.0",
            protocol_version=PROTOCOL_VERSION,
            engine="vllm 0.32.0",
            server_id="server-1",
            model="Qwen/Qwen2.5-3B-Instruct",
            dtype="bfloat16",
            head_dtype="float32",
            tokenizer_fingerprint="0123456789abcdef",
            vocabulary_fingerprint="fedcba9876543210",
            chat_template_fingerprint=None,
            max_model_len=4096,
            max_images=2,
            world_size=1,
            device="cuda",
            gpus=["GPU-2f7d9c3e-0a51-4b8e-9d6c-3f1e5a7b9c0d"],
            nccl_version="2.30.7",
            adapters=_adapters,
            sessions=SessionsInfo(open=3, tool_parser="hermes", reasoning_parser="qwen3", template=_findings),
            weights=_state,
        ),
        TrainerInfo(
            version="0.1.0",
            protocol_version=PROTOCOL_VERSION,
            run="runs/demo",
            step=12,
            max_steps=160,
            policy_version=12,
            stage="rollout",
        ),
        SessionRequest(
            session=SESSION,
            trainer_id="run-1",
            rendezvous=_rendezvous,
            secret="5e" * 32,
            rank_offset=1,
            world_size=3,
            backend="gloo",
            take_over=True,
        ),
        BeginRequest(
            session=SESSION, version=13, kind="lora", manifest=_manifest, peft_config={"r": 8}, base_digest="cd" * 32
        ),
        CommitRequest(session=SESSION, version=13, digest="ab" * 32),
        AbortRequest(session=SESSION),
        RenewRequest(session=SESSION, canary_agreed=13),
        CloseRequest(session=SESSION),
        _limits,
        OpenSession(
            session_id="run-1.12.3",
            group_id="run-1.12",
            weights_session=SESSION,
            min_version=12,
            seed=7,
            sampling=_sampling,
            chat_template_kwargs={"enable_thinking": False},
            limits=_limits,
        ),
        SessionOpened(
            session_id="run-1.12.3",
            openai_base_url="http://127.0.0.1:8000/sessions/run-1.12.3/v1",
            anthropic_base_url="http://127.0.0.1:8000/sessions/run-1.12.3",
            api_key="api-x",
            control_key="control-x",
        ),
        GenerateTurn(parent=0, messages=[_message], max_tokens=64),
        _usage,
        GeneratedTurn(
            turn=1,
            segment=0,
            message={"role": "assistant", "content": "4"},
            text="4",
            token_ids=[5, 2],
            logprobs=[-0.1, -0.2],
            versions=[(12, 1), (13, 1)],
            finish_reason="stop",
            usage=_usage,
        ),
        SessionReward(name="won", value=None, turn=1, metrics={"moves": 3.0}),
        CloseSession(status="failed", cause="program", detail="exit status 1"),
        SessionState(session_id="run-1.12.3", status="truncated", cause="policy", detail="max_turns 16 is reached"),
        _recorded_turn,
        _recorded_segment,
        _session_stats,
        Trajectory(
            session_id="run-1.12.3",
            group_id="run-1.12",
            status="completed",
            rewards={"won": 1.0},
            metrics={"moves": 3.0},
            stats=_session_stats,
            segments=[_recorded_segment],
            images={"d1": "iVBORw0KGgo="},
        ),
        _findings,
        SessionsInfo(open=3, tool_parser="hermes", reasoning_parser="qwen3", images=True, template=_findings),
    )
}

VARIANTS: dict[str, BaseModel] = {
    "Sampling-shaped": _shaped,
    "Sampling-structured": Sampling(max_tokens=64, structured_outputs=_structured),
    "Prompt-images": Prompt(token_ids=[1, 9, 2], images=["iVBORw0KGgo=", "/9j/4AA="]),
    "Message-tool-calls": Message(role="assistant", content="I add the first two.", tool_calls=[_call]),
    "Message-null-content": Message(role="assistant", content=None, tool_calls=[_call]),
    "Message-tool": Message(role="tool", content="63", tool_call_id="call-1", name="add"),
    "Message-parts": Message(role="user", content=[_part, _picture]),
    "ScoreSample-messages": _sample.model_copy(
        update={"messages": [_message, Message(role="assistant", content="44 + 19 + 35")]}
    ),
}
"""Further examples, of a message whose fields depend on each other. Each has a golden file, too."""
