"""Lets a tiny server stand for the tool gateway and its waits, whose libraries take a second to import."""

import os
import sys

if os.environ.get("STUB_DIR") and sys.orig_argv[1:2] == ["-m"]:
    module = sys.orig_argv[2]
    words = " ".join(sys.orig_argv[2:4])
    if os.environ.get("STUB_HANGS") == words:
        # It says that it is there, and never ends by itself.
        open(os.path.join(os.environ["STUB_DIR"], "hangs"), "w").close()
        os.execv("/bin/sleep", ["sleep", "600"])
    if module == "primebeaker.coordination":
        os.execv("/bin/true", ["true"])
    if module == "primebeaker.gateway":
        program = os.path.join(os.environ["STUB_DIR"], "bin", "gateway")
        os.execv(sys.executable, [sys.executable, "-S", program, *sys.orig_argv[3:]])
