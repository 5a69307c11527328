"""A stand-in for ``docker`` and ``beaker``: notes every call, answers from a scripted table.

``RECORDER_FILE`` gets one JSON line a call.  ``RECORDER_SCRIPT`` is a JSON list of rules, the first that matches wins:
``{"program", "match": [words in order], "code", "stdout", "stderr", "times", "hang", "kill"}``.
"""

import hashlib
import json
import os
import sys
import time
from pathlib import Path

PASSED = {
    *("DOCKER_BIN", "PULL_BASES", "PUSH_IMAGES", "BUILD_LOCAL_SEARCH", "JTC_BUILD_CONTEXT", "IMAGE_REPOSITORY"),
    *("IMAGE_TAG", "PLATFORM", "PIP_INDEX_URL", "PIP_FIND_LINKS", "PIP_TRUSTED_HOST", "VLLM_BASE_IMAGE"),
    "BEAKER_TOKEN",
}


def in_order(words, arguments):
    left = iter(arguments)
    return all(any(word == argument for argument in left) for word in words)


def times_used(log, rule):
    if not log.exists():
        return 0
    return sum(json.loads(line).get("rule") == rule for line in log.read_text().splitlines())


def default_answer(program, arguments):
    if program == "docker" and arguments[:2] == ["image", "inspect"]:
        return "sha256:" + hashlib.sha256(arguments[-1].encode()).hexdigest() + "\n"
    if in_order(["account", "whoami"], arguments):
        return '[{"id": "01U", "name": "me"}]'
    if in_order(["experiment", "create"], arguments):
        return json.dumps({"id": "01EXP" + str(os.getpid())})
    return ""


def main():
    program = Path(sys.argv[0]).name
    arguments = sys.argv[1:]
    log = Path(os.environ["RECORDER_FILE"])
    rules = json.loads(Path(os.environ["RECORDER_SCRIPT"]).read_text()) if os.environ.get("RECORDER_SCRIPT") else []
    files = {}
    for argument in arguments:
        if argument.endswith(".json") and Path(argument).is_file():
            files[argument] = json.loads(Path(argument).read_text())
    chosen = None
    for index, rule in enumerate(rules):
        matches = rule.get("program", program) == program and in_order(rule["match"], arguments)
        if matches and ("times" not in rule or times_used(log, index) < rule["times"]):
            chosen = index
            break
    call = {
        "program": program,
        "argv": arguments,
        "cwd": str(Path.cwd()),
        "env": {name: os.environ[name] for name in PASSED if name in os.environ},
        "files": files,
        "rule": chosen,
    }
    with log.open("a") as stream:
        stream.write(json.dumps(call) + "\n")
    if chosen is None:
        sys.stdout.write(default_answer(program, arguments))
        return 0
    rule = rules[chosen]
    sys.stdout.write(rule.get("stdout", ""))
    sys.stderr.write(rule.get("stderr", ""))
    sys.stdout.flush()
    if rule.get("hang"):
        time.sleep(rule["hang"])
    if rule.get("kill"):
        os.kill(os.getpid(), rule["kill"])
    return rule.get("code", 0)


sys.exit(main())
