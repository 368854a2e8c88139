"""The rollout server: vLLM's own API server, plus routes that sample groups and routes that take new weights.

In reading order:

    __main__.py        parse the command, check cheap things, import vLLM last
    options.py         our defaults for vLLM's flags, our flags, what is refused before anything heavy starts
    kv_connectors.py   which of vLLM's KV connectors may stand beside weights that change
    toolchain.py       what must be installed where vLLM compiles kernels
    server.py          run vLLM's API server, and report why it ended
    headless.py        run the workers of another machine of a multi-node engine, without a server
    plugin.py          vLLM's entry points into this package: one for every process, one for the API server
    parts.py           build the parts below on top of a running engine
    engine.py          call vLLM's engine client; raise when the engine has died instead of waiting forever
    kept_sequences.py  keep the KV cache of running sequences over a push, inside the engine process
    guard.py           middleware in front of every route: the token, then the state of the weights
    routes.py          the routes: translate HTTP into calls of the parts
    wire_route.py      the class of these routes: limit the body, answer every error with the wire's error body
    health.py          answer /livez and /info from memory; readiness.py: /readyz
    metrics.py         our Prometheus series beside vLLM's
    chat_messages.py   the wire's chat messages → what a chat template reads
    rollouts.py        POST /v1/rollouts: sample groups of completions
    images.py          prompts with images: decode and process them, within bounds of memory
    regex_grammar.py   completions that match a regex: compile it within limits, inside the engine process
    completion_text.py the text of a completion, and what ends one
    logprobs.py        POST /v1/logprobs: score given sequences
    cut_off.py         await an answer until its deadline, or until nobody waits for it
    weight_state.py    the weight state machine, pure functions
    pushes.py          /v1/weights/*: carry out the state machine's decisions in the engine
    adapters.py        the adapter versions, and which of them each request samples from
    adapter_check.py   check the push of an adapter: its configuration, its base, its tensors
    manifest_check.py  check a push's manifest against the model's list of tensors, before any byte moves
    receiver.py        in every vLLM worker: join the trainer's process group, receive buckets, load them
    nccl_pins.py       join without the NCCL settings that vLLM pins for itself
    loaders.py         what a worker does with the tensors of a push, by kind
    adapter_loader.py  take an adapter into vLLM from the tensors of a push, inside a worker
    layer_probe.py     does each layer compute with what was loaded into it?
    family_cures.py    what some model families need around vLLM's layerwise reload
    load_in_place.py   load weights where they belong as they arrive
    reload.py          read and repair vLLM's layerwise reload while a push is incomplete
    cpu_kernels.py     adapter kernels for an engine on CPUs
    workarounds.py     gaps in vLLM and its platform: what breaks without each workaround, when to delete it
    sessions/          /v1/sessions: an episode of several turns, recorded token by token
    describe.py        print the OpenAPI document of our routes
    json_logging.json  vLLM's logging configuration for GRPO_LOG_FORMAT=json
"""

__version__ = "0.1.0"
