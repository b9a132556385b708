"""The panels of the dashboard, row by row."""

from __future__ import annotations

from tools.dashboard.panels import ON, Panel, mean, quantiles, rate, share, total

G, F, C, E = "triptych_gateway", "triptych_frontend", "triptych_encoder", "triptych_engine"
#: Without probes and scrapes.
_CLIENTS = 'route!~"/metrics|/live|/ready|/health|/load"'
_REQUESTS = rate(f"{G}_requests", where=_CLIENTS)
_SERVER_ERRORS = rate(f"{G}_requests", where=f'status=~"5..", {_CLIENTS}')
_STREAM_ERRORS = rate(f"{G}_stream_errors")
_FAILED = f"(({_SERVER_ERRORS} or vector(0)) + ({_STREAM_ERRORS} or vector(0)))"
_ENCODER_HITS = rate(f"{C}_items", where='tier!="miss"')

ROWS: dict[str, list[Panel]] = {
    "Overview": [
        Panel("Requests/s", [(_REQUESTS, "")], "reqps", kind="stat"),
        Panel(
            "Failed",
            [(share(_FAILED, _REQUESTS), "")],
            "percentunit",
            "Answers with status 5xx, and streams that ended with an error.",
            kind="stat",
            thresholds=(0.01, 0.05),
        ),
        Panel("Output tokens/s", [(rate(f"{E}_generation_tokens"), "")], kind="stat"),
        Panel("Running", [(total(f"{E}_running_requests"), "")], kind="stat"),
        Panel("Waiting", [(total(f"{E}_waiting_requests"), "")], kind="stat", thresholds=(1, 32)),
        Panel(
            "KV cache",
            [(f"max({E}_kv_cache_usage_ratio{{{ON}}})", "")],
            "percentunit",
            "The fullest engine.",
            kind="stat",
            thresholds=(0.8, 0.95),
        ),
        Panel("Requests by status", [(rate(f"{G}_requests", "status", _CLIENTS), "{{status}}")], "reqps", stacked=True),
        Panel("Errors by code", [(rate(f"{G}_errors", "code", _CLIENTS), "{{code}}")], "reqps", stacked=True),
        Panel("Time to first token", quantiles(f"{G}_time_to_first_token_seconds"), "s", "Of streams, at the gateway."),
        Panel("Between two tokens", quantiles(f"{G}_inter_token_seconds"), "s", "Of streams, at the gateway."),
        Panel("Requests, from head to end", quantiles(f"{G}_request_seconds", where=_CLIENTS), "s"),
        Panel(
            "Tokens/s",
            [
                (rate(f"{G}_prompt_tokens"), "prompt"),
                (rate(f"{G}_cached_tokens"), "prompt, cached"),
                (rate(f"{G}_completion_tokens"), "output"),
            ],
        ),
    ],
    "Engine": [
        Panel("Running", [(total(f"{E}_running_requests", "instance"), "{{instance}}")], stacked=True),
        Panel("Waiting", [(total(f"{E}_waiting_requests", "instance"), "{{instance}}")], stacked=True),
        Panel("KV cache", [(f"{E}_kv_cache_usage_ratio{{{ON}}}", "{{instance}}")], "percentunit"),
        Panel("Sequences, from arrival to end", quantiles(f"{E}_request_seconds"), "s"),
        Panel("Time to first token", quantiles(f"{E}_time_to_first_token_seconds"), "s"),
        Panel("Between two tokens", quantiles(f"{E}_inter_token_seconds"), "s"),
        Panel(
            "Stages, p95",
            [(query, stage) for stage in ("queue", "prefill", "decode") for query, _ in quantiles(f"{E}_{stage}_seconds", (0.95,))],
            "s",
        ),
        Panel("Tokens/s", [(rate(f"{E}_prompt_tokens"), "prompt"), (rate(f"{E}_generation_tokens"), "output")]),
        Panel(
            "Prefix cache hits",
            [(share(rate(f"{E}_cached_tokens"), rate(f"{E}_prompt_tokens")), "share of prompt tokens")],
            "percentunit",
        ),
        Panel("Sequences per step", [(mean(f"{E}_batch_size"), "mean"), *quantiles(f"{E}_batch_size", (0.95,))]),
        Panel("Tokens per step", [(mean(f"{E}_step_tokens"), "mean"), *quantiles(f"{E}_step_tokens", (0.95,))]),
        Panel("Duration of a step", quantiles(f"{E}_step_seconds"), "s"),
        Panel("Preemptions/s", [(rate(f"{E}_preemptions", "instance"), "{{instance}}")]),
        Panel("Ended sequences/s", [(rate(f"{E}_requests", "finish_reason"), "{{finish_reason}}")], stacked=True),
        Panel("Errors/s", [(rate(f"{E}_errors", "reason"), "{{reason}}")], stacked=True),
        Panel("Embeddings of media", [(rate(f"{E}_media_items", "source"), "{{source}}")], stacked=True),
        Panel("Fetch of embeddings", quantiles(f"{E}_embedding_fetch_seconds"), "s"),
        Panel("Failed fetches/s", [(rate(f"{E}_embedding_fetch_failures"), "failures")]),
        Panel(
            "Embedding cache",
            [(total(f"{E}_embedding_cache_{part}_bytes"), part) for part in ("used", "kept", "capacity")],
            "bytes",
        ),
    ],
    "Encoder": [
        Panel("Queue", [(total(f"{C}_queue_length", "instance"), "{{instance}}")], stacked=True),
        Panel("Items/s by tier", [(rate(f"{C}_items", "tier"), "{{tier}}")], stacked=True),
        Panel("Hits", [(share(_ENCODER_HITS, rate(f"{C}_items")), "share of items")], "percentunit"),
        Panel(
            "Stages, p95",
            [
                (query, f"{stage} {{{{modality}}}}")
                for stage in ("queue", "decode", "preprocess", "encode")
                for query, _ in quantiles(f"{C}_{stage}_seconds", (0.95,), "modality")
            ],
            "s",
        ),
        Panel("Fetch by engines", quantiles(f"{C}_fetch_seconds"), "s"),
        Panel("Items per batch", [(mean(f"{C}_batch_size"), "mean"), *quantiles(f"{C}_batch_size", (0.95,))]),
        Panel("Embeddings per batch", [(mean(f"{C}_batch_embeddings"), "mean"), *quantiles(f"{C}_batch_embeddings", (0.95,))]),
        Panel("Cache", [(total(f"{C}_cache_{part}_bytes"), part) for part in ("used", "leased", "capacity")], "bytes"),
        Panel("Items in the cache", [(total(f"{C}_cache_items"), "items"), (total(f"{C}_leases"), "leases")]),
        Panel("Evictions/s", [(rate(f"{C}_evictions"), "evictions")]),
        Panel("Bytes/s", [(rate(f"{C}_uploaded_bytes"), "files in"), (rate(f"{C}_fetched_bytes"), "embeddings out")], "Bps"),
        Panel(
            "Errors/s",
            [
                (rate(f"{C}_errors", "reason"), "{{reason}}"),
                (rate(f"{C}_failed_items"), "failed items"),
                (rate(f"{C}_store_failures"), "shared store"),
            ],
        ),
    ],
    "Frontend": [
        Panel("Live calls", [(total(f"{F}_live_requests", "instance"), "{{instance}}")], stacked=True),
        Panel("Calls/s by outcome", [(rate(f"{F}_calls", "outcome"), "{{outcome}}")], stacked=True),
        Panel(
            "Connected",
            [(f"min({F}_engines_connected{{{ON}}})", "engines"), (f"min({F}_encoders_connected{{{ON}}})", "encoders")],
            description="The frontend that sees the fewest.",
        ),
        Panel("Calls, p95", quantiles(f"{F}_call_seconds", (0.95,), "task"), "s"),
        Panel("Time to first token, p95", quantiles(f"{F}_time_to_first_token_seconds", (0.95,), "task"), "s"),
        Panel("Between two tokens, p95", quantiles(f"{F}_inter_token_seconds", (0.95,), "task"), "s"),
        Panel("Preprocessing, p95", quantiles(f"{F}_preprocess_seconds", (0.95,), "task"), "s"),
        Panel("Wait in the engine, p95", quantiles(f"{F}_queue_seconds", (0.95,), "task"), "s"),
        Panel("Encoding as the frontend sees it, p95", quantiles(f"{F}_media_encode_seconds", (0.95,), "tier"), "s"),
        Panel("Media items/s", [(rate(f"{F}_media_items", "tier"), "{{tier}}"), (rate(f"{F}_media_uploads"), "files sent")]),
        Panel("Fallbacks/s", [(rate(f"{F}_media_fallbacks", "step"), "{{step}}")], stacked=True),
        Panel("Fetches of media by URL", [*quantiles(f"{F}_media_fetch_seconds", (0.95,), "scheme")], "s"),
        Panel("Failed fetches/s", [(rate(f"{F}_media_fetch_failures", "scheme"), "{{scheme}}")]),
        Panel("Files of live calls", [(total(f"{F}_media_live_bytes", "instance"), "{{instance}}")], "bytes", stacked=True),
        Panel(
            "Tokens/s by task",
            [(rate(f"{F}_prompt_tokens", "task"), "prompt {{task}}"), (rate(f"{F}_completion_tokens", "task"), "output {{task}}")],
        ),
    ],
    "Gateway": [
        Panel("Requests in flight", [(total(f"{G}_requests_in_flight", "instance"), "{{instance}}")], stacked=True),
        Panel("Requests/s by route", [(rate(f"{G}_requests", "route"), "{{route}}")], "reqps", stacked=True),
        Panel("Requests by route, p95", quantiles(f"{G}_request_seconds", (0.95,), "route"), "s"),
        Panel("Bodies that wait for memory", [(total(f"{G}_bodies_waiting"), "bodies")]),
        Panel(
            "Requests that wait for a model", [(total(f"{G}_model_requests_waiting", "model_name"), "{{model_name}}")], stacked=True
        ),
        Panel(
            "Requests refused because of their key", [(rate(f"{G}_access_refused", "reason"), "{{reason}}")], "reqps", stacked=True
        ),
        Panel(
            "Tokens/s by tenant",
            [(f"{rate(f'{G}_tenant_prompt_tokens', 'tenant')} + {rate(f'{G}_tenant_completion_tokens', 'tenant')}", "{{tenant}}")],
            stacked=True,
        ),
        Panel(
            "Requests refused with 429, by tenant",
            [(rate(f"{G}_tenant_refused", "tenant, resource"), "{{tenant}} {{resource}}")],
            "reqps",
            stacked=True,
        ),
        Panel(
            "Responses in the background, batches",
            [(total(f"{G}_background_responses"), "responses"), (total(f"{G}_running_batches"), "batches")],
        ),
        Panel(
            "Clients that left, broken streams",
            [(rate(f"{G}_requests_aborted"), "left"), (rate(f"{G}_stream_errors", "code"), "{{code}}")],
        ),
    ],
    "Processes": [
        Panel("Up time", [(f"time() - process_start_time_seconds{{{ON}}}", "{{instance}}")], "s"),
        Panel("CPU", [(f"rate(process_cpu_seconds_total{{{ON}}}[$__rate_interval])", "{{instance}}")], description="Cores in use."),
        Panel("Memory", [(f"process_resident_memory_bytes{{{ON}}}", "{{instance}}")], "bytes"),
        Panel("gRPC calls/s by status", [(rate(f"{one}_grpc_calls", "code"), f"{one[9:]} {{{{code}}}}") for one in (F, C, E)]),
        Panel("Open files", [(f"process_open_fds{{{ON}}}", "{{instance}}")]),
        Panel("Versions", [(f"count by (service, version) (triptych_build_info{{{ON}}})", "{{service}} {{version}}")]),
    ],
}
