# The trainer: torch and DeepSpeed, no vLLM, no compiler. DeepSpeed compiles nothing: the trainer uses none of its ops.
#   docker build -f docker/trainer.Dockerfile --build-arg VARIANT=gpu -t localhost/grpo-services/trainer:0.1.0-gpu .
#   docker build -f docker/trainer.Dockerfile --build-arg VARIANT=cpu -t localhost/grpo-services/trainer:0.1.0-cpu .
# torch replaces a few operations by Triton kernels, which want a compiler when they are called: TORCH_DISABLE_NATIVE_JIT.
# The GPU variant needs no CUDA image below it: torch's wheels bring the libraries, the host brings the driver. GKE mounts it
# at /usr/local/nvidia, without NVIDIA's container runtime.
ARG BASE_IMAGE=python:3.11.14-slim-bookworm

FROM ${BASE_IMAGE} AS build
ARG VARIANT=gpu
ENV UV_LINK_MODE=copy
COPY --chmod=755 docker/build_tools.sh docker/requirements/build.txt /src/docker/
RUN --mount=type=bind,source=docker/wheels,target=/wheels /src/docker/build_tools.sh /opt/build /src/docker/build.txt
ENV PATH=/opt/build/bin:$PATH
RUN uv venv --quiet --python "$(readlink -f /opt/build/bin/python)" /opt/grpo
COPY --chmod=755 docker/install.sh docker/requirements/trainer-${VARIANT}.txt requirements/deepspeed.txt /src/docker/
RUN --mount=type=cache,target=/root/.cache/uv --mount=type=bind,source=docker/wheels,target=/wheels \
    /src/docker/install.sh /opt/grpo ${VARIANT} /src/docker/trainer-${VARIANT}.txt
# A source distribution; it looks at the torch that is there.
RUN --mount=type=cache,target=/root/.cache/uv --mount=type=bind,source=docker/wheels,target=/wheels \
    DS_BUILD_OPS=0 /src/docker/install.sh /opt/grpo any /src/docker/deepspeed.txt --no-build-isolation
COPY --chmod=755 proto /src/proto
COPY --chmod=755 services/trainer /src/trainer
RUN for package in proto trainer; do \
      uv build --quiet --wheel --no-build-isolation --no-index --out-dir /dist /src/$package || exit 1; done \
 && uv pip install --python /opt/grpo/bin/python --no-deps --no-index --no-cache --compile-bytecode /dist/*.whl

FROM ${BASE_IMAGE}
ARG VARIANT=gpu
ARG VERSION=0.1.0
ARG REVISION=unknown
LABEL org.opencontainers.image.title="grpo-services trainer (${VARIANT})" \
      org.opencontainers.image.description="GRPO on DeepSpeed, fed by rollout and reward servers" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${REVISION}" \
      org.opencontainers.image.licenses="Apache-2.0"
RUN groupadd --gid 10001 grpo && useradd --uid 10001 --gid 10001 --no-create-home --home-dir /tmp --shell /usr/sbin/nologin grpo \
 && mkdir -p /models /runs && chown 10001:10001 /models /runs
# NCCL loads them where there is RDMA, and does without where there is none.
RUN if [ "$VARIANT" = gpu ]; then \
      apt-get update -qq \
      && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends libibverbs1 ibverbs-providers \
      && rm -rf /var/lib/apt/lists/* /var/cache/apt /var/log/apt /var/log/dpkg.log; fi
COPY --chmod=755 docker/entrypoint.sh docker/healthcheck.py docker/prepare.py docker/prepare_demo.sh /usr/local/lib/grpo/
COPY --from=build /opt/grpo /opt/grpo
COPY --chmod=755 examples /app/examples
ENV PATH=/opt/grpo/bin:$PATH \
    HOME=/tmp HF_HOME=/models/huggingface XDG_CACHE_HOME=/tmp/cache \
    NVIDIA_VISIBLE_DEVICES=void NVIDIA_DRIVER_CAPABILITIES=compute,utility \
    LD_LIBRARY_PATH=/usr/local/nvidia/lib:/usr/local/nvidia/lib64 \
    TORCH_DISABLE_NATIVE_JIT=1 \
    PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1
USER 10001:10001
WORKDIR /app
EXPOSE 8002
HEALTHCHECK --interval=10s --timeout=6s --start-period=30m --retries=3 \
    CMD ["python3", "-I", "/usr/local/lib/grpo/healthcheck.py", "8002"]
ENTRYPOINT ["/usr/local/lib/grpo/entrypoint.sh"]
CMD ["grpo-train", "--help"]
