# One image for all services; what a container is, its command tells.
#
#   docker build -t spica-async .
#   docker run --rm --init spica-async spica-async run --help
#   docker run --rm --init spica-async python -m workers --help

FROM python:3.11-slim AS build

ENV UV_COMPILE_BYTECODE=1 UV_LINK_MODE=copy UV_NO_CACHE=1 VIRTUAL_ENV=/opt/spica
RUN pip install --no-cache-dir uv && python -m venv --without-pip /opt/spica
WORKDIR /build

# The dependencies first: they are large and change seldom. The lock has their versions and hashes.
COPY pyproject.toml requirements.lock ./
RUN uv pip install --require-hashes --constraint requirements.lock --requirements pyproject.toml

COPY README.md LICENSE ./
COPY schemas schemas
COPY spica_async spica_async
COPY workers workers
RUN uv build --wheel --require-hashes --build-constraint requirements.lock --out-dir dist \
    && uv pip install --no-deps dist/*.whl

FROM python:3.11-slim

# Volumes that are mounted over these folders are the user's, too.
RUN useradd --create-home --uid 10001 spica \
    && install --directory --owner spica /results /home/spica/.cache /home/spica/.cache/spica-async
COPY --from=build /opt/spica /opt/spica
ENV PATH=/opt/spica/bin:$PATH PYTHONUNBUFFERED=1
USER 10001
WORKDIR /home/spica
CMD ["spica-async", "--help"]
