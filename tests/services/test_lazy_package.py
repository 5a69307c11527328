"""A preview loads the two submodules of LiteRegistry that it needs, not its servers."""

from __future__ import annotations

import subprocess
import sys


def _run(code: str) -> str:
    return subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout


def test_a_preview_loads_no_server() -> None:
    code = (
        "import sys\n"
        "from primebeaker.cli import main\n"
        "assert main(['services', 'preview', '--head-registry=/weka/x']) == 0\n"
        "print('LOADED', sorted({'fastapi', 'numpy', 'aiohttp'} & set(sys.modules)))\n"
    )
    assert _run(code).endswith("LOADED []\n")


def test_whoever_asks_for_a_name_gets_the_whole_package() -> None:
    code = (
        "from primebeaker.services.stacks import STACKS, load_native\n"
        "load_native(STACKS['base'])\n"
        "import literegistry, types\n"
        "from literegistry import RegistryClient, get_kvstore\n"
        "assert type(literegistry) is types.ModuleType\n"
        "assert literegistry.redis.RedisKVStore and literegistry.coop\n"
        "try:\n"
        "    literegistry.nothing\n"
        "except AttributeError as error:\n"
        "    print(error)\n"
    )
    assert _run(code) == "module 'literegistry' has no attribute 'nothing'\n"


def test_what_is_loaded_or_missing_is_left_alone() -> None:
    code = (
        "import json, sys\n"
        "from primebeaker.services.lazy_package import postpone_init\n"
        "postpone_init('json'); postpone_init('no_such_package'); postpone_init('textwrap')\n"
        "print(type(json).__name__, 'no_such_package' in sys.modules, 'textwrap' in sys.modules)\n"
    )
    assert _run(code).startswith("module False")
