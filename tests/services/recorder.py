"""A stand-in for ``docker`` and ``beaker``: notes every call, answers from a scripted table.

``RECORDER_FILE`` gets one JSON line a call.  ``RECORDER_SCRIPT`` is a JSON list of rules, the first that matches wins:
``{"program", "match": [words in order], "code", "stdout", "stderr", "times", "hang", "kill", "made"}``; ``made`` says
that Beaker has the image although the answer fails.  Without a rule ``beaker image`` behaves as a Beaker does that
remembers what was imported into the workspace ``RECORDER_IMAGES``.
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


def imported(log):
    """Name -> Docker ID of the images that Beaker has."""
    names = {}
    for line in log.read_text().splitlines() if log.exists() else []:
        call = json.loads(line)
        if call["program"] == "beaker" and call["argv"][:2] == ["image", "create"] and call["made"]:
            names.setdefault(call["argv"][call["argv"].index("--name") + 1], call["argv"][2])
    return names


def image_answer(workspace, log, arguments):
    """Exit code and stdout of ``beaker image create`` and ``get``."""
    known = imported(log)
    name = arguments[arguments.index("--name") + 1] if arguments[1] == "create" else arguments[2].partition("/")[2]
    record = {
        "id": "01" + hashlib.sha256(name.encode()).hexdigest()[:8],
        "workspaceRef": {"fullName": workspace},
        "committed": "2026-01-02T00:00:00Z",
        "originalTag": known.get(name),
    }
    if (name in known) is (arguments[1] == "create"):
        return 1, "name already in use" if name in known else "not found"
    return 0, json.dumps(record)


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
    workspace = os.environ.get("RECORDER_IMAGES")
    answered = None
    if chosen is None and workspace and program == "beaker" and arguments[0] == "image":
        answered = image_answer(workspace, log, arguments)
    call = {
        "program": program,
        "argv": arguments,
        "cwd": str(Path.cwd()),
        "pid": os.getpid(),
        "env": {name: os.environ[name] for name in PASSED if name in os.environ},
        "files": files,
        "rule": chosen,
        "made": rules[chosen].get("made", False) if chosen is not None else answered is not None and answered[0] == 0,
    }
    with log.open("a") as stream:
        stream.write(json.dumps(call) + "\n")
    if answered is not None:
        (sys.stderr if answered[0] else sys.stdout).write(answered[1])
        return answered[0]
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
