# docker build -t fedscout .
# docker run --rm --user "$(id -u):$(id -g)" -v "$PWD":/work fedscout run
# The versions are those of the lock. PyTorch's index has builds without CUDA, a tenth of the size; for GPUs:
# docker build --build-arg INDEX= -t fedscout .
FROM python:3.11-slim

ARG INDEX=--extra-index-url=https://download.pytorch.org/whl/cpu
WORKDIR /build
COPY pyproject.toml constraints.txt README.md LICENSE ./
COPY src src
COPY engine engine
COPY detectors detectors
COPY strategies strategies
COPY search search
COPY experiments experiments
RUN pip install --no-cache-dir $INDEX -c constraints.txt . && rm -rf /build/*

RUN useradd --create-home fedscout && install -d -o fedscout /work
USER fedscout
WORKDIR /work
ENTRYPOINT ["fedscout"]
CMD ["--help"]
