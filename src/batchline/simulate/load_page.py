"""GET /metrics: running and waiting requests, with the names of vLLM, SGLang or llama.cpp."""

# Names and labels of the two, and what the type of a number looks like.
_NAMES = {
    "vllm": ("vllm:num_requests_running", "vllm:num_requests_waiting", '{{engine="0",model_name="{model}"}}'),
    "sglang": ("sglang:num_running_reqs", "sglang:num_queue_reqs", '{{model_name="{model}",tp_rank="0"}}'),
    "llamacpp": ("llamacpp:requests_processing", "llamacpp:requests_deferred", ""),
}
SERVERS = tuple(_NAMES)


def load_page(server: str, model: str, running: int, waiting: int) -> bytes:
    """Prometheus' text format."""
    *names, labels = _NAMES[server]
    labels = labels.format(model=model.replace("\\", r"\\").replace('"', r"\""))
    helps = ("Number of requests being executed.", "Number of requests in the queue.")
    # llama.cpp writes whole numbers, the others use Python's client, which does not.
    values = (running, waiting) if server == "llamacpp" else (float(running), float(waiting))
    return "".join(
        f"# HELP {name} {about}\n# TYPE {name} gauge\n{name}{labels} {value}\n"
        for name, about, value in zip(names, helps, values, strict=True)
    ).encode()
