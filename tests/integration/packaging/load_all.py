"""Runs under a program's own interpreter: loads every module that is shipped. Arguments: folder, our packages."""

import importlib
import ssl
import sys
from pathlib import Path

root, ours = Path(sys.argv[1]), sys.argv[2].split(",")
sys.path.append(str(root / "app"))
print(ssl.OPENSSL_VERSION)

from agents.kube import lean  # noqa: E402 - found only with the path above

lean.load("ApiClient")
failed = []
for path in sorted((root / "app").rglob("*.pyc")):
    name = ".".join(path.relative_to(root / "app").with_suffix("").parts).removesuffix(".__init__")
    if name.endswith("__main__") or name.partition(".")[0] not in ours:
        continue
    try:
        importlib.import_module(name)
    except Exception as error:  # noqa: BLE001 - every reason is to be shown
        failed.append(f"{name}: {error!r}")
print("\n".join(failed) or "loaded")
