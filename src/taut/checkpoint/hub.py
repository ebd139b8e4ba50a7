"""Models by hub id: fetches the safetensors, JSON and text files of a repository, nothing else, into the hub library's
own cache.

`HF_ENDPOINT`, `HF_HOME`, `HF_TOKEN` and `HF_HUB_OFFLINE` act as they do for every program that uses huggingface_hub.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

from taut.errors import ModelNotFoundError

PATTERNS = ["*.safetensors", "*.safetensors.index.json", "*.json", "*.txt", "*.jinja"]
IGNORED = ["onnx/*", "openvino/*", "*/onnx/*", "*/openvino/*", "original/*"]
_ID = re.compile(r"[A-Za-z0-9][\w.\-]{0,95}/[A-Za-z0-9][\w.\-]{0,95}")


def is_hub_id(ref: str) -> bool:
    """Whether `ref` looks like "organisation/name"."""
    return _ID.fullmatch(ref) is not None and ".." not in ref


def fetch(repo_id: str) -> Path:
    """The local folder of the repository's newest revision, downloaded if need be, with a progress bar on a terminal."""
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError, RepositoryNotFoundError

    try:
        folder = snapshot_download(
            repo_id, allow_patterns=PATTERNS, ignore_patterns=IGNORED, endpoint=os.environ.get("HF_ENDPOINT") or None
        )
    except RepositoryNotFoundError:
        raise ModelNotFoundError(
            f"no model {repo_id!r} on the hub (or it is private: set HF_TOKEN); no folder of that name here either"
        ) from None
    except LocalEntryNotFoundError:
        raise ModelNotFoundError(
            f"{repo_id!r} is neither a folder here nor in the hub's cache, and the hub cannot be reached; "
            "check the network, or give a local folder"
        ) from None
    except (HfHubHTTPError, OSError, ValueError) as error:
        raise ModelNotFoundError(f"{repo_id!r} could not be fetched from the hub: {_first_line(error)}") from None
    return Path(folder)


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:300]
