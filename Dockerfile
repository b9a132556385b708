# One target per service: docker build --target gateway|frontend|encoder|engine|fetch .
#
# Where packages come from can be said with the build arguments PIP_INDEX_URL, PIP_EXTRA_INDEX_URL and PIP_FIND_LINKS: an index or a
# directory that offers a CPU build of torch makes the images of encoder and engine several GB smaller.

FROM docker.io/library/python:3.11-slim AS base
ENV PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1 PATH=/opt/triptych/bin:$PATH
ENV TRIPTYCH_CACHE=/var/cache/triptych
RUN useradd --uid 10001 --user-group --no-create-home --home-dir /var/cache/triptych --shell /usr/sbin/nologin triptych \
    && install -d -o triptych -g triptych /var/cache/triptych
WORKDIR /var/cache/triptych

# --- dependencies, in layers that change only with pyproject.toml and constraints.txt --------------------------------------

FROM base AS build
ARG PIP_INDEX_URL
ARG PIP_EXTRA_INDEX_URL
ARG PIP_FIND_LINKS
ENV PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_ROOT_USER_ACTION=ignore
WORKDIR /src
RUN python -m venv --without-pip /opt/triptych
COPY pyproject.toml constraints.txt tools/requirements.py ./
COPY clients/python/pyproject.toml clients/python/

FROM build AS build-gateway
RUN python requirements.py gateway > requirements.txt \
    && pip --python /opt/triptych/bin/python install -c constraints.txt -r requirements.txt

FROM build AS build-frontend
RUN python requirements.py frontend > requirements.txt \
    && pip --python /opt/triptych/bin/python install -c constraints.txt -r requirements.txt

FROM build AS build-encoder
RUN pip --python /opt/triptych/bin/python install 'torch>=2.11,<2.14'
RUN python requirements.py encoder > requirements.txt \
    && pip --python /opt/triptych/bin/python install -c constraints.txt -r requirements.txt

FROM build AS build-engine
RUN apt-get update && apt-get install -y --no-install-recommends g++ && rm -rf /var/lib/apt/lists/*
RUN pip --python /opt/triptych/bin/python install 'torch>=2.11,<2.14'
RUN python requirements.py engine > requirements.txt \
    && pip --python /opt/triptych/bin/python install -c constraints.txt -r requirements.txt

# --- Triptych itself: the same wheels for all ------------------------------------------------------------------------------------

FROM build AS wheel
COPY . .
RUN pip wheel --no-deps -w /wheel ./clients/python .

FROM build-engine AS kernels
COPY --from=wheel /wheel /wheel
RUN pip --python /opt/triptych/bin/python install --no-deps /wheel/*.whl
# For every instruction set, because the machine that runs the image is not the one that builds it.
RUN /opt/triptych/bin/python -m triptych_engine.runner.cpu.kernel_build /opt/triptych/kernels

# --- what runs: each listens on all addresses of its container, and on its own loopback for control ----------------------------

FROM base AS gateway
COPY --from=build-gateway /opt/triptych /opt/triptych
RUN --mount=type=bind,from=wheel,source=/wheel,target=/wheel pip --python /opt/triptych/bin/python install --no-cache-dir --no-deps /wheel/*.whl
ENV TRIPTYCH_GATEWAY_HOST=0.0.0.0
USER triptych
EXPOSE 8000
HEALTHCHECK --start-period=60s --interval=10s CMD ["python", "-m", "triptych_cli.stack.probes", "http://127.0.0.1:8000"]
ENTRYPOINT ["python", "-m", "triptych_gateway"]

FROM base AS frontend
COPY --from=build-frontend /opt/triptych /opt/triptych
RUN --mount=type=bind,from=wheel,source=/wheel,target=/wheel pip --python /opt/triptych/bin/python install --no-cache-dir --no-deps /wheel/*.whl
ENV TRIPTYCH_FRONTEND_HOST=0.0.0.0
USER triptych
EXPOSE 50051
HEALTHCHECK --start-period=120s --interval=10s CMD ["python", "-m", "triptych_cli.stack.probes", "grpc://127.0.0.1:50151"]
ENTRYPOINT ["python", "-m", "triptych_frontend"]

FROM base AS encoder
COPY --from=build-encoder /opt/triptych /opt/triptych
RUN --mount=type=bind,from=wheel,source=/wheel,target=/wheel pip --python /opt/triptych/bin/python install --no-cache-dir --no-deps /wheel/*.whl
ENV TRIPTYCH_ENCODER_HOST=0.0.0.0
USER triptych
EXPOSE 50052
HEALTHCHECK --start-period=300s --interval=10s CMD ["python", "-m", "triptych_cli.stack.probes", "grpc://127.0.0.1:50152"]
ENTRYPOINT ["python", "-m", "triptych_encoder"]

FROM base AS engine
COPY --from=build-engine /opt/triptych /opt/triptych
RUN --mount=type=bind,from=wheel,source=/wheel,target=/wheel pip --python /opt/triptych/bin/python install --no-cache-dir --no-deps /wheel/*.whl
COPY --from=kernels /opt/triptych/kernels /opt/triptych/kernels
ENV TRIPTYCH_ENGINE_HOST=0.0.0.0 TRIPTYCH_KERNEL_DIR=/opt/triptych/kernels
USER triptych
EXPOSE 50053
HEALTHCHECK --start-period=300s --interval=10s CMD ["python", "-m", "triptych_cli.stack.probes", "grpc://127.0.0.1:50153"]
ENTRYPOINT ["python", "-m", "triptych_engine"]

# Puts a model into the cache volume and ends. Converting the built-in model needs what the engine has, and pip.
FROM engine AS fetch
USER root
RUN python -m ensurepip
USER triptych
HEALTHCHECK NONE
ENTRYPOINT ["triptych", "fetch"]
