# One target per service, one with all of them, and a few more: docs/containers.md.
#
#   docker build --target gateway|frontend|encoder|engine|fetch|sbom .
#   docker build .                                    # the last stage: all services in one image
#
# Build arguments: BASE_IMAGE; TORCH_BACKEND (cpu, cu128, ...); VERSION and REVISION for the labels; PIP_INDEX_URL,
# PIP_EXTRA_INDEX_URL and PIP_FIND_LINKS, which say where packages come from, torch included.

ARG BASE_IMAGE=docker.io/library/python:3.11-slim@sha256:da047cb8f9d1d98e5c070f5300ba9f7274e33b8fc0e5be5ed88740aed1b95ba9

FROM ${BASE_IMAGE} AS base
ARG BASE_IMAGE
LABEL org.opencontainers.image.vendor="Triptych" org.opencontainers.image.licenses="Apache-2.0" \
    org.opencontainers.image.base.name="${BASE_IMAGE}"
# Files are never written at run time: the root file system may be read-only. Models are in the volume, all else in /tmp.
ENV PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1 PATH=/opt/triptych/bin:$PATH \
    HOME=/var/cache/triptych TRIPTYCH_CACHE=/var/cache/triptych
RUN useradd --uid 10001 --user-group --no-create-home --home-dir /var/cache/triptych --shell /usr/sbin/nologin triptych \
    && install -d -o triptych -g triptych /var/cache/triptych
WORKDIR /var/cache/triptych

# --- dependencies, in layers that change only with pyproject.toml and constraints.txt --------------------------------------

FROM base AS tools
ARG PIP_INDEX_URL
ARG PIP_EXTRA_INDEX_URL
ARG PIP_FIND_LINKS
# `python` and `pip` are the base image's here. Nothing is compiled: most files are never imported, and the final stages compile the others.
ENV PATH=/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin HOME=/root PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_ROOT_USER_ACTION=ignore PIP_COMPILE=0
WORKDIR /src
RUN apt-get update && apt-get install -y --no-install-recommends g++ && rm -rf /var/lib/apt/lists/*

FROM tools AS build
RUN python -m venv --without-pip /opt/triptych
COPY pyproject.toml constraints.txt tools/images/requirements.py tools/images/slim.py ./
COPY clients/python/pyproject.toml clients/python/

FROM build AS build-gateway
RUN --mount=type=cache,target=/root/.cache/pip python requirements.py gateway discovery pdf speech tracing > requirements.txt \
    && pip --python /opt/triptych/bin/python install -c constraints.txt -r requirements.txt \
    && python slim.py /opt/triptych

FROM build AS build-frontend
RUN --mount=type=cache,target=/root/.cache/pip python requirements.py frontend discovery tracing > requirements.txt \
    && pip --python /opt/triptych/bin/python install -c constraints.txt -r requirements.txt \
    && python slim.py /opt/triptych

FROM build AS build-torch
ARG TORCH_BACKEND=cpu
COPY tools/install_torch.py ./
RUN --mount=type=cache,target=/root/.cache/pip --mount=type=cache,target=/root/.cache/uv \
    python install_torch.py --backend "${TORCH_BACKEND}" --into /opt/triptych/bin/python -c constraints.txt 'torch>=2.11,<2.14'

FROM build-torch AS build-encoder
RUN --mount=type=cache,target=/root/.cache/pip python requirements.py encoder discovery tracing > requirements.txt \
    && pip --python /opt/triptych/bin/python install -c constraints.txt -r requirements.txt \
    && python slim.py /opt/triptych

FROM build-torch AS build-engine
RUN --mount=type=cache,target=/root/.cache/pip python requirements.py engine discovery kv-events smg tracing > requirements.txt \
    && pip --python /opt/triptych/bin/python install -c constraints.txt -r requirements.txt \
    && python slim.py /opt/triptych

# pip itself too: built-in models come as packages.
FROM build-torch AS build-all
RUN --mount=type=cache,target=/root/.cache/pip python requirements.py gateway frontend encoder engine discovery kv-events pdf smg speech tracing > requirements.txt \
    && pip --python /opt/triptych/bin/python install -c constraints.txt -r requirements.txt pip \
    && python slim.py /opt/triptych

# --- Triptych itself ---------------------------------------------------------------------------------------------------------

FROM build AS code
COPY . .
RUN --mount=type=cache,target=/root/.cache/pip pip --python /opt/triptych/bin/python install --no-deps ./clients/python .

# For every instruction set, because the machine that runs the image is not the one that builds it. Only the kernels and the few files
# that build them are here, so that no other edit builds them again.
FROM tools AS kernels
RUN --mount=type=cache,target=/root/.cache/pip pip install psutil==7.2.2
COPY clients/python/triptych/errors.py triptych/
COPY services/triptych_common/host triptych_common/host
COPY services/triptych_engine/runner/cpu/csrc triptych_engine/runner/cpu/csrc
COPY services/triptych_engine/runner/cpu/kernel_build.py triptych_engine/runner/cpu/
RUN python -m triptych_engine.runner.cpu.kernel_build /kernels

# --- what runs: each listens on all addresses of its container, and on its own loopback for control. A service with gRPC starts only
#     with TLS or with TRIPTYCH_<SERVICE>_INSECURE_GRPC=true. --------------------------------------------------------------------

FROM base AS gateway
COPY --from=build-gateway /opt/triptych /opt/triptych
COPY --from=code /opt/triptych/lib /opt/triptych/lib
COPY --from=code /opt/triptych/bin/triptych /opt/triptych/bin/
RUN --mount=type=bind,source=tools/images,target=/tools python /tools/compile_imported.py triptych_gateway.app triptych_cli.stack.probes
ENV TRIPTYCH_GATEWAY_HOST=0.0.0.0
USER 10001:10001
EXPOSE 8000 50051
HEALTHCHECK --start-period=60s --interval=10s CMD ["python", "-m", "triptych_cli.stack.probes", "gateway"]
ENTRYPOINT ["python", "-m", "triptych_gateway"]
ARG VERSION
ARG REVISION
LABEL org.opencontainers.image.title="Triptych gateway" org.opencontainers.image.description="Gateway: OpenAI and Anthropic APIs over HTTP, and gRPC" \
    org.opencontainers.image.version="${VERSION}" org.opencontainers.image.revision="${REVISION}"

FROM base AS frontend
COPY --from=build-frontend /opt/triptych /opt/triptych
COPY --from=code /opt/triptych/lib /opt/triptych/lib
COPY --from=code /opt/triptych/bin/triptych /opt/triptych/bin/
RUN --mount=type=bind,source=tools/images,target=/tools python /tools/compile_imported.py triptych_frontend.service triptych_cli.stack.probes
ENV TRIPTYCH_FRONTEND_HOST=0.0.0.0 TRIPTYCH_FRONTEND_HEALTH_PORT=50254 TRIPTYCH_FRONTEND_METRICS_PORT=50354
USER 10001:10001
EXPOSE 50054 50254 50354
HEALTHCHECK --start-period=120s --interval=10s CMD ["python", "-m", "triptych_cli.stack.probes", "frontend"]
ENTRYPOINT ["python", "-m", "triptych_frontend"]
ARG VERSION
ARG REVISION
LABEL org.opencontainers.image.title="Triptych frontend" org.opencontainers.image.description="Frontend: chat templates, tokens, media" \
    org.opencontainers.image.version="${VERSION}" org.opencontainers.image.revision="${REVISION}"

FROM base AS encoder
COPY --from=build-encoder /opt/triptych /opt/triptych
COPY --from=code /opt/triptych/lib /opt/triptych/lib
COPY --from=code /opt/triptych/bin/triptych /opt/triptych/bin/
RUN --mount=type=bind,source=tools/images,target=/tools python /tools/compile_imported.py triptych_encoder.service triptych_cli.stack.probes
ENV TRIPTYCH_ENCODER_HOST=0.0.0.0 TRIPTYCH_ENCODER_HEALTH_PORT=50252 TRIPTYCH_ENCODER_METRICS_PORT=50352
USER 10001:10001
EXPOSE 50052 50252 50352
HEALTHCHECK --start-period=300s --interval=10s CMD ["python", "-m", "triptych_cli.stack.probes", "encoder"]
ENTRYPOINT ["python", "-m", "triptych_encoder"]
ARG VERSION
ARG REVISION
LABEL org.opencontainers.image.title="Triptych encoder" org.opencontainers.image.description="Encoder: images, audio and video to embeddings" \
    org.opencontainers.image.version="${VERSION}" org.opencontainers.image.revision="${REVISION}"

FROM base AS engine
COPY --from=build-engine /opt/triptych /opt/triptych
# CUDA builds of torch bring Triton, which compiles what launches its kernels on a GPU.
RUN if ls /opt/triptych/lib/python3*/site-packages/triton/__init__.py > /dev/null 2>&1; then apt-get update && apt-get install -y --no-install-recommends gcc libc6-dev && rm -rf /var/lib/apt/lists/*; fi
COPY --from=kernels /kernels /opt/triptych/kernels
COPY --from=code /opt/triptych/lib /opt/triptych/lib
COPY --from=code /opt/triptych/bin/triptych /opt/triptych/bin/
RUN --mount=type=bind,source=tools/images,target=/tools python /tools/compile_imported.py triptych_engine.service triptych_cli.stack.probes
ENV TRIPTYCH_ENGINE_HOST=0.0.0.0 TRIPTYCH_ENGINE_HEALTH_PORT=50253 TRIPTYCH_ENGINE_METRICS_PORT=50353 TRIPTYCH_KERNEL_DIR=/opt/triptych/kernels
USER 10001:10001
EXPOSE 50053 50253 50353
HEALTHCHECK --start-period=300s --interval=10s CMD ["python", "-m", "triptych_cli.stack.probes", "engine"]
ENTRYPOINT ["python", "-m", "triptych_engine"]
ARG VERSION
ARG REVISION
LABEL org.opencontainers.image.title="Triptych engine" org.opencontainers.image.description="Engine: the language model" \
    org.opencontainers.image.version="${VERSION}" org.opencontainers.image.revision="${REVISION}"

# Puts a model into the cache volume and ends. Converting the built-in model needs what the engine has, and pip.
FROM engine AS fetch
USER 0:0
RUN python -m ensurepip
USER 10001:10001
HEALTHCHECK NONE
ENTRYPOINT ["triptych", "fetch"]
LABEL org.opencontainers.image.title="Triptych fetch" org.opencontainers.image.description="Puts a model into a volume"

# --- lists of what the images contain: docker build --target sbom --output sbom . ---------------------------------------------

FROM build AS sbom-tool
RUN --mount=type=cache,target=/root/.cache/pip python -m venv /opt/sbom && /opt/sbom/bin/pip install cyclonedx-bom==7.5.0

FROM build-gateway AS sbom-gateway
COPY --from=sbom-tool /opt/sbom /opt/sbom
COPY --from=code /opt/triptych/lib /opt/triptych/lib
RUN /opt/sbom/bin/cyclonedx-py environment --output-file /triptych-gateway.cdx.json /opt/triptych/bin/python

FROM build-frontend AS sbom-frontend
COPY --from=sbom-tool /opt/sbom /opt/sbom
COPY --from=code /opt/triptych/lib /opt/triptych/lib
RUN /opt/sbom/bin/cyclonedx-py environment --output-file /triptych-frontend.cdx.json /opt/triptych/bin/python

FROM build-encoder AS sbom-encoder
COPY --from=sbom-tool /opt/sbom /opt/sbom
COPY --from=code /opt/triptych/lib /opt/triptych/lib
RUN /opt/sbom/bin/cyclonedx-py environment --output-file /triptych-encoder.cdx.json /opt/triptych/bin/python

FROM build-engine AS sbom-engine
COPY --from=sbom-tool /opt/sbom /opt/sbom
COPY --from=code /opt/triptych/lib /opt/triptych/lib
RUN /opt/sbom/bin/cyclonedx-py environment --output-file /triptych-engine.cdx.json /opt/triptych/bin/python

FROM scratch AS sbom
COPY --from=sbom-gateway /triptych-gateway.cdx.json /
COPY --from=sbom-frontend /triptych-frontend.cdx.json /
COPY --from=sbom-encoder /triptych-encoder.cdx.json /
COPY --from=sbom-engine /triptych-engine.cdx.json /

# --- all services in one image, and the last stage: docker run -p 8000:8000 triptych MODEL -------------------------------------

FROM base AS suite
# Neighbours reach the gateway only, which asks for keys. The services are children of the first process, which has to reap what they leave behind.
RUN apt-get update && apt-get install -y --no-install-recommends tini && rm -rf /var/lib/apt/lists/*
COPY --from=build-all /opt/triptych /opt/triptych
# CUDA builds of torch bring Triton, which compiles what launches its kernels on a GPU.
RUN if ls /opt/triptych/lib/python3*/site-packages/triton/__init__.py > /dev/null 2>&1; then apt-get update && apt-get install -y --no-install-recommends gcc libc6-dev && rm -rf /var/lib/apt/lists/*; fi
COPY --from=kernels /kernels /opt/triptych/kernels
COPY --from=code /opt/triptych/lib /opt/triptych/lib
COPY --from=code /opt/triptych/bin/triptych /opt/triptych/bin/
RUN --mount=type=bind,source=tools/images,target=/tools python /tools/compile_imported.py triptych_gateway.app triptych_frontend.service triptych_encoder.service triptych_engine.service triptych_cli.serve triptych_cli.stack.probes
ENV TRIPTYCH_GATEWAY_HOST=0.0.0.0 TRIPTYCH_KERNEL_DIR=/opt/triptych/kernels
USER 10001:10001
EXPOSE 8000 50051
VOLUME /var/cache/triptych
HEALTHCHECK --start-period=300s --interval=10s CMD ["python", "-m", "triptych_cli.stack.probes", "gateway"]
ENTRYPOINT ["tini", "--", "triptych", "serve"]
ARG VERSION
ARG REVISION
LABEL org.opencontainers.image.title="Triptych" org.opencontainers.image.description="Multimodal LLM serving: all services" \
    org.opencontainers.image.version="${VERSION}" org.opencontainers.image.revision="${REVISION}"
