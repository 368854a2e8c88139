# The rollout server.
#   docker build -f docker/rollout.Dockerfile --target gpu -t localhost/grpo-services/rollout:0.1.0-gpu .
#   docker build -f docker/rollout.Dockerfile --target cpu -t localhost/grpo-services/rollout:0.1.0-cpu .
# gpu: our two plugins on top of the vLLM team's own image. The same target takes their CPU image:
#   --build-arg VLLM_IMAGE=…
# cpu: a base image with Python 3.11 and the pinned community build of vLLM for CPUs.
ARG BASE_IMAGE=python:3.11.14-slim-bookworm
ARG VLLM_IMAGE=vllm/vllm-openai:v0.32.0

FROM ${BASE_IMAGE} AS tools
ENV UV_LINK_MODE=copy
COPY --chmod=755 docker/build_tools.sh docker/requirements/build.txt /src/docker/
RUN --mount=type=bind,source=docker/wheels,target=/wheels /src/docker/build_tools.sh /opt/build /src/docker/build.txt
ENV PATH=/opt/build/bin:$PATH

FROM tools AS build
COPY --chmod=755 proto /src/proto
COPY --chmod=755 services/rollout /src/rollout
RUN for package in proto rollout; do \
      uv build --quiet --wheel --no-build-isolation --no-index --out-dir /dist /src/$package || exit 1; done

# Not from `build`: a change of our own code must not install everything again.
FROM tools AS build-cpu
RUN uv venv --quiet --python "$(readlink -f /opt/build/bin/python)" /opt/grpo
COPY --chmod=755 docker/install.sh docker/requirements/rollout-cpu.txt /src/docker/
RUN --mount=type=cache,target=/root/.cache/uv --mount=type=bind,source=docker/wheels,target=/wheels \
    /src/docker/install.sh /opt/grpo cpu /src/docker/rollout-cpu.txt
COPY --from=build /dist /dist
RUN uv pip install --python /opt/grpo/bin/python --no-deps --no-index --no-cache --compile-bytecode /dist/*.whl

FROM ${VLLM_IMAGE} AS build-gpu
USER root
# Whatever pip the image has, or none.
COPY --from=tools /opt/build/bin/uv /usr/local/bin/
COPY --chmod=755 docker/requirements/rollout-gpu.txt /src/
COPY --from=build /dist /dist
# Beside vLLM's own packages, which stay as they are, and before them on the path: of the few that both have, such as
# pydantic and httpx, those versions are taken that the tests ran with vLLM.
# vLLM's image has an override for its own installs in UV_OVERRIDE: without a hash, which --require-hashes refuses.
RUN --mount=type=bind,source=docker/wheels,target=/wheels \
    export UV_OVERRIDE= \
 && target="--python $(command -v python3) --target /opt/grpo-plugins" \
 && pins="uv pip install --quiet --no-cache $target --no-deps --require-hashes --find-links /wheels -r /src/rollout-gpu.txt" \
 && { $pins --no-index 2>/dev/null || $pins; } \
 && uv pip install --quiet --no-cache $target --no-deps --no-index /dist/*.whl

FROM ${VLLM_IMAGE} AS gpu
ARG VERSION=0.1.0
ARG REVISION=unknown
LABEL org.opencontainers.image.title="grpo-services rollout (GPU)" \
      org.opencontainers.image.description="vLLM that samples groups of completions and takes new weights" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${REVISION}" \
      org.opencontainers.image.licenses="Apache-2.0"
USER root
RUN groupadd --gid 10001 grpo && useradd --uid 10001 --gid 10001 --no-create-home --home-dir /tmp --shell /usr/sbin/nologin grpo \
 && mkdir -p /models /cache && chown 10001:10001 /models /cache
COPY --chmod=755 docker/entrypoint.sh docker/healthcheck.py /usr/local/lib/grpo/
COPY --from=build-gpu /opt/grpo-plugins /opt/grpo-plugins
ENV PATH=/opt/grpo-plugins/bin:$PATH PYTHONPATH=/opt/grpo-plugins \
    HOME=/tmp HF_HOME=/models/huggingface XDG_CACHE_HOME=/cache VLLM_CACHE_ROOT=/cache/vllm \
    TORCHINDUCTOR_CACHE_DIR=/cache/inductor TRITON_CACHE_DIR=/cache/triton FLASHINFER_WORKSPACE_BASE=/cache \
    PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1 VLLM_NO_USAGE_STATS=1
USER 10001:10001
WORKDIR /models
EXPOSE 8000
HEALTHCHECK --interval=10s --timeout=6s --start-period=30m --retries=3 \
    CMD ["python3", "-I", "/usr/local/lib/grpo/healthcheck.py", "8000"]
ENTRYPOINT ["/usr/local/lib/grpo/entrypoint.sh"]
CMD ["grpo-rollout", "serve", "--help"]

FROM ${BASE_IMAGE} AS cpu
ARG VERSION=0.1.0
ARG REVISION=unknown
LABEL org.opencontainers.image.title="grpo-services rollout (CPU)" \
      org.opencontainers.image.description="vLLM that samples groups of completions and takes new weights" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${REVISION}" \
      org.opencontainers.image.licenses="Apache-2.0"
# vLLM compiles at run time: it needs a C++ compiler, and Python's headers where the base image lacks them.
RUN apt-get update -qq \
 && headers=$(python3 -c 'import os, sysconfig; print("" if os.path.exists(sysconfig.get_path("include") + "/Python.h") else "libpython3-dev")') \
 && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends g++ libnuma1 $headers \
 && rm -rf /var/lib/apt/lists/* /var/cache/apt /var/log/apt /var/log/dpkg.log
RUN groupadd --gid 10001 grpo && useradd --uid 10001 --gid 10001 --no-create-home --home-dir /tmp --shell /usr/sbin/nologin grpo \
 && mkdir -p /models /cache && chown 10001:10001 /models /cache
COPY --chmod=755 docker/entrypoint.sh docker/healthcheck.py /usr/local/lib/grpo/
COPY --from=build-cpu /opt/grpo /opt/grpo
ENV PATH=/opt/grpo/bin:$PATH \
    HOME=/tmp HF_HOME=/models/huggingface XDG_CACHE_HOME=/cache VLLM_CACHE_ROOT=/cache/vllm \
    TORCHINDUCTOR_CACHE_DIR=/cache/inductor TRITON_CACHE_DIR=/cache/triton \
    PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1 VLLM_NO_USAGE_STATS=1
USER 10001:10001
WORKDIR /models
EXPOSE 8000
HEALTHCHECK --interval=10s --timeout=6s --start-period=10m --retries=3 \
    CMD ["python3", "-I", "/usr/local/lib/grpo/healthcheck.py", "8000"]
ENTRYPOINT ["/usr/local/lib/grpo/entrypoint.sh"]
CMD ["grpo-rollout", "serve", "--help"]
