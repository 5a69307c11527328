"""One sentence for each field of the native stack configs; a field not listed shows its type and default only."""

from __future__ import annotations

from collections.abc import Mapping

__all__ = ["FIELD_HELP"]

FIELD_HELP: Mapping[str, str] = {
    # Registry
    "registry": "Registry that already runs: redis://, head+file://, head+sqlite://, file://, sqlite:// or a path.",
    "head_registry": "Shared place where the stack's own Redis publishes its address; not together with registry.",
    "registry_cache_ttl_seconds": "Seconds for which the gateway remembers the registry's answer.",
    "redis_cluster": "Cluster of the Redis task; by default the gateway's.",
    "redis_image": "Beaker image of the Redis task.",
    "redis_data_dir": "Absolute shared directory of Redis' append-only file; not together with registry.",
    "shared_dir": "Shared directory below which the stack keeps its coordination files.",
    "coordination_root": "Absolute shared directory below which the stack keeps its coordination files.",
    # Replicas
    "python_replicas": "Replicas of the Python tool service.",
    "terminal_replicas": "Replicas of the read-only terminal tool service.",
    "web_search_replicas": "Replicas of the web search service; needs the Serper and Jina secrets.",
    "local_search_replicas": "Replicas of the BM25 search over a local corpus.",
    "generation_replicas": "Replicas of the text generation model.",
    "classification_replicas": "Replicas of the classification model.",
    "podman_replicas": "Replicas of the Podman session service.",
    "docker_mirror_replicas": "Replicas of the pull-through mirror of Docker Hub.",
    # Web search cache
    "cache_maxmemory": "Memory limit of the web search cache, as Redis writes it.",
    "cache_maxmemory_policy": "Which cached answers Redis drops first.",
    "cache_ttl_seconds": "Seconds for which a cached answer lives.",
    # Local search
    "local_search_corpus_jsonl": "Corpus of the local search, one JSON document a line.",
    "local_search_index_dir": "Directory of its Lucene index; built when it is missing.",
    "local_search_service_name": "Name it registers under; by default localsearch:<stem of the corpus file>.",
    # Models
    "generation_model": "Path or name of the generation model.",
    "generation_tp": "GPUs of one generation replica (tensor parallel).",
    "classification_model": "Path or name of the classification model.",
    "classification_tp": "GPUs of one classification replica (tensor parallel).",
    "max_model_len": "Longest context of the models, in tokens.",
    "max_num_batched_tokens": "Most tokens vLLM puts in one batch.",
    "max_num_seqs": "Most sequences vLLM runs at a time; by default vLLM's own.",
    "hf_home": "Hugging Face cache directory of the models.",
    # Gateway
    "gateway_workers": "Worker processes of the gateway.",
    "gateway_timeout": "Seconds after which the gateway gives up on a request.",
    "gateway_cluster": "Cluster of the gateway; by default the first service cluster.",
    "gateway_image": "Beaker image of the gateway.",
    "affinity_ttl_seconds": "Seconds for which a session sticks to its replica.",
    "docker_mirror_soft_affinity": "Prefer the mirror that already holds an image.",
    "docker_mirror_affinity_ttl_seconds": "Seconds for which an image sticks to its mirror.",
    "python_pool_size": "Interpreters each Python replica keeps ready.",
    # Placement
    "service_clusters": "Clusters over which the service replicas are spread, earlier ones first.",
    "model_cluster": "Cluster of the models.",
    "workspace": "Beaker workspace, owner/name.",
    "budget": "Beaker budget.",
    "priority": "Beaker priority of all tasks: normal, high or urgent.",
    "service_priority": "Beaker priority of the service tasks: normal, high or urgent.",
    "model_priority": "Beaker priority of the models: normal, high or urgent.",
    "min_runtime_hours": "Hours for which Beaker does not preempt a task.",
    "omit_service_resources": "Leave out the request for zero GPUs of the service tasks.",
    "omit_resources": "Leave out the request for zero GPUs.",
    "name_prefix": "Start of the experiment's name.",
    "weka_source": "Weka bucket mounted at /weka.",
    # Images and secrets
    "services_image": "Beaker image of gateway, Python and web search.",
    "terminal_image": "Beaker image of the terminal service.",
    "local_search_image": "Beaker image of the local search.",
    "vllm_image": "Beaker image of the models.",
    "podman_image": "Beaker image of the Podman session service.",
    "docker_mirror_image": "Beaker image of the mirror.",
    "warmup_image": "Beaker image of the warm-up task.",
    "serper_api_key_secret": "Name of the Beaker secret with the Serper key.",
    "jina_api_key_secret": "Name of the Beaker secret with the Jina key.",
    "hf_token_secret": "Name of the Beaker secret with the Hugging Face token.",
    "docker_hub_username": "Docker Hub user of the mirror.",
    "docker_hub_username_secret": "Name of the Beaker secret with the Docker Hub user.",
    "docker_hub_token_secret": "Name of the Beaker secret with the Docker Hub token.",
    # Podman sessions
    "podman_instance_prefix": "Start of the names of the Podman instances.",
    "podman_session_image": "Container image of a session when a request names none; passed unchanged.",
    "podman_session_network": "Network of a session, as podman run takes it.",
    "podman_max_sessions": "Most sessions of one replica at a time.",
    "podman_session_memory": "Memory limit of a session.",
    "podman_session_pids_limit": "Most processes in a session.",
    "podman_session_idle_timeout": "Seconds after which an idle session is removed.",
    "podman_janitor_interval": "Seconds between two clean-ups of a replica.",
    "podman_resource_watchdog_interval": "Seconds between two looks at a replica's resources.",
    "podman_image_prune_until": "Age from which unused container images are removed.",
    "podman_registry_mirror": "Root URL of a container registry mirror, http(s)://host[:port].",
    "docker_mirror_storage_root": "Directory in which the mirror keeps images.",
    "docker_mirror_warm_images_file": "File with the images to fetch beforehand, one a line.",
    "warmup_enabled": "Run the task that fetches images beforehand.",
    "warmup_concurrency": "Images fetched at a time by the warm-up task.",
    "warmup_checkpoint_file": "Absolute file in which the warm-up task notes what it has done.",
}
