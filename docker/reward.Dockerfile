# The reward server: no torch, no compiler.
#   docker build -f docker/reward.Dockerfile -t localhost/grpo-services/reward:0.1.0 .
# BASE_IMAGE: any Debian or Ubuntu with Python 3.11, by digest if you like.
ARG BASE_IMAGE=python:3.11.14-slim-bookworm

FROM ${BASE_IMAGE} AS build
ENV UV_LINK_MODE=copy
COPY --chmod=755 docker/build_tools.sh docker/requirements/build.txt /src/docker/
RUN --mount=type=bind,source=docker/wheels,target=/wheels /src/docker/build_tools.sh /opt/build /src/docker/build.txt
ENV PATH=/opt/build/bin:$PATH
RUN uv venv --quiet --python "$(readlink -f /opt/build/bin/python)" /opt/grpo
COPY --chmod=755 docker/install.sh docker/requirements/reward.txt /src/docker/
RUN --mount=type=cache,target=/root/.cache/uv --mount=type=bind,source=docker/wheels,target=/wheels \
    /src/docker/install.sh /opt/grpo any /src/docker/reward.txt
COPY --chmod=755 proto /src/proto
COPY --chmod=755 services/reward /src/reward
RUN for package in proto reward; do \
      uv build --quiet --wheel --no-build-isolation --no-index --out-dir /dist /src/$package || exit 1; done \
 && uv pip install --python /opt/grpo/bin/python --no-deps --no-index --no-cache --compile-bytecode /dist/*.whl

FROM ${BASE_IMAGE}
ARG VERSION=0.1.0
ARG REVISION=unknown
LABEL org.opencontainers.image.title="grpo-services reward" \
      org.opencontainers.image.description="Reward server: text in, scores out" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${REVISION}" \
      org.opencontainers.image.licenses="Apache-2.0"
RUN groupadd --gid 10001 grpo && useradd --uid 10001 --gid 10001 --no-create-home --home-dir /tmp --shell /usr/sbin/nologin grpo
COPY --chmod=755 docker/entrypoint.sh docker/healthcheck.py /usr/local/lib/grpo/
COPY --from=build /opt/grpo /opt/grpo
ENV PATH=/opt/grpo/bin:$PATH HOME=/tmp PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1
USER 10001:10001
WORKDIR /tmp
EXPOSE 8001
HEALTHCHECK --interval=10s --timeout=6s --start-period=30s --retries=3 \
    CMD ["python3", "-I", "/usr/local/lib/grpo/healthcheck.py", "8001"]
ENTRYPOINT ["/usr/local/lib/grpo/entrypoint.sh"]
CMD ["grpo-reward", "serve", "--host", "0.0.0.0"]
