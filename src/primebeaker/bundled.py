"""The names of the bundled environments: plain data, read by the TOML checks, the launcher and the registry alike.

To add an environment: add its line here and its module under ``primebeaker/environments/``.
"""

from __future__ import annotations

from types import MappingProxyType

__all__ = ["ALIASES", "CANONICAL", "ENVIRONMENT_NAMESPACE", "MODULES"]

#: The package whose modules Verifiers loads by plain module path.
ENVIRONMENT_NAMESPACE = "primebeaker.environments"

#: Canonical name -> module base name.
CANONICAL: MappingProxyType[str, str] = MappingProxyType(
    {
        "articulated-harness": "articulated_harness_env",
        "code-tool-label": "jtc_code_tool_label_env",
        "label": "jtc_label_env",
        "multiple-choice-accuracy": "jtc_multiple_choice_accuracy_env",
        "podman-terminal": "podman_terminal_env",
        "reward-model": "jtc_reward_model_env",
        "rubrichub-judge": "jtc_rubrichub_judge_env",
        "search-agent-dataset": "jtc_search_agent_env",
        "search-agent-visit": "jtc_search_agent_visit_env",
        "search-agent-visit-judge": "jtc_search_agent_visit_judge_env",
        "search-agent-webterminal": "jtc_search_agent_webterminal_env",
        "search-agent-webterminal-judge": "jtc_search_agent_webterminal_judge_env",
        "search-visit-agent-dataset": "jtc_search_visit_agent_env",
        "search-visit-agent-judge": "jtc_search_visit_agent_judge_env",
        "terminal-tool-label": "jtc_terminal_tool_label_env",
        "tool-label": "jtc_tool_label_env",
    }
)

#: Alias -> canonical name.
ALIASES: MappingProxyType[str, str] = MappingProxyType(
    {
        "jtc-code-tool-label": "code-tool-label",
        "jtc-label": "label",
        "jtc-multiple-choice-accuracy": "multiple-choice-accuracy",
        "podman-terminal-verifier": "podman-terminal",
        "jtc-reward-model": "reward-model",
        "jtc-rubrichub-judge": "rubrichub-judge",
        "jtc-search-agent": "search-agent-dataset",
        "jtc-search-agent-visit": "search-agent-visit",
        "jtc-search-agent-visit-judge": "search-agent-visit-judge",
        "jtc-search-agent-webterminal": "search-agent-webterminal",
        "jtc-search-agent-webterminal-judge": "search-agent-webterminal-judge",
        "jtc-search-visit-agent": "search-visit-agent-dataset",
        "jtc-search-visit-agent-judge": "search-visit-agent-judge",
        "jtc-terminal-tool-label": "terminal-tool-label",
        "jtc-tool-label": "tool-label",
    }
)

#: Every module path that Verifiers can load, a second factory path of podman-terminal included.
MODULES: frozenset[str] = frozenset({*CANONICAL.values(), "podman_terminal_verifier_env"})
