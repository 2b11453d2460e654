# The server image is small; the report needs Java and Spark, so it is a target of its own.
FROM python:3.13-slim AS build
WORKDIR /src
# The hot path is compiled: docs/adr/0047-the-hot-path-can-be-compiled.md. The image that runs gets neither
# the compiler nor the second Python that may come with the headers, hence UV_PYTHON.
RUN apt-get update && apt-get install -y --no-install-recommends gcc python3-dev && rm -rf /var/lib/apt/lists/*
RUN pip install --no-cache-dir 'uv>=0.8'
COPY pyproject.toml uv.lock README.md LICENSE ./
ENV UV_PROJECT_ENVIRONMENT=/opt/tricklecast UV_PYTHON=/usr/local/bin/python UV_LINK_MODE=copy UV_COMPILE_BYTECODE=1
RUN uv sync --locked --no-dev --no-install-project --extra server --extra media --extra tokens --extra cluster
COPY scripts/vendor.py scripts/vendor.toml scripts/
COPY tricklecast tricklecast
COPY trickle trickle
COPY app app
COPY publisher publisher
COPY subscriber subscriber
COPY analytics analytics
ENV HATCH_BUILD_HOOKS_ENABLE=1
RUN uv sync --locked --no-dev --no-editable --extra server --extra media --extra tokens --extra cluster

FROM build AS build-analytics
RUN uv sync --locked --no-dev --no-editable --extra server --extra media --extra tokens --extra cluster --extra analytics

FROM python:3.13-slim AS base
RUN useradd --create-home --uid 10001 tricklecast && mkdir /data /logs /storms && chown tricklecast /logs /storms /data
ENV PATH=/opt/tricklecast/bin:$PATH PYTHONUNBUFFERED=1
USER tricklecast
ENTRYPOINT ["tricklecast"]

FROM base AS analytics
USER root
RUN apt-get update && apt-get install -y --no-install-recommends default-jre-headless procps && rm -rf /var/lib/apt/lists/*
USER tricklecast
COPY --from=build-analytics /opt/tricklecast /opt/tricklecast
COPY examples/storms_job.py /opt/storms_job.py
CMD ["storms", "/logs"]

FROM base AS server
COPY --from=build /opt/tricklecast /opt/tricklecast
EXPOSE 2939
VOLUME /logs
# The server writes its address into this file, so that the check asks the right port, with any options of `serve`.
ENV TRICKLECAST_HEALTH_FILE=/tmp/tricklecast.health
# With these, glibc's allocator returns the memory of freed segments to the system: docs/explanation/memory.md.
ENV MALLOC_MMAP_THRESHOLD_=131072 MALLOC_TRIM_THRESHOLD_=131072 MALLOC_ARENA_MAX=1
HEALTHCHECK --interval=10s --timeout=5s --start-period=5s \
    CMD ["tricklecast", "health"]
CMD ["serve", "--host", "0.0.0.0", "--access-log", "/logs/access.jsonl"]
