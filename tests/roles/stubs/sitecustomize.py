"""Lets a tiny server stand for the tool gateway and its waits, whose libraries take a second to import."""

import os
import sys

if os.environ.get("STUB_DIR") and sys.orig_argv[1:2] == ["-m"]:
    module = sys.orig_argv[2]
    if module == "primebeaker.coordination":
        os.execv("/bin/true", ["true"])
    if module == "primebeaker.gateway":
        program = os.path.join(os.environ["STUB_DIR"], "bin", "gateway")
        os.execv(sys.executable, [sys.executable, "-S", program, *sys.orig_argv[3:]])
