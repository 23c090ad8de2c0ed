"""The tests of this folder need environments of their own: `make test-flydsl-versions`."""

from __future__ import annotations

import os

collect_ignore = [] if os.environ.get("FLYDSL_VERSIONS") else ["test_flydsl_versions.py"]
