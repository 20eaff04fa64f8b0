"""The benchmark of collecting, on small campaigns: PyDarshan and we find the same bytes, and every fault is found."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_a_small_campaign_is_measured_and_its_faults_found(tmp_path: Path) -> None:
    out = tmp_path / "result.json"
    sizes = ["--ranks", "8", "16", "--checkpoints", "3", "--repeats", "1", "--logs", "8"]
    command = [sys.executable, "benchmarks/collecting.py", *sizes, "--directory", str(tmp_path), "--json", str(out)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr
    found = json.loads(out.read_text())
    rows = [(row["ranks"], row["runs"][0]["rows"], row["missed"]) for row in found["curve"]]
    assert rows == [(8, 24, []), (16, 48, [])]
    assert len(found["readers"]) == 4
    assert found["curve"][0]["question_s"] > 0
    assert "ms per log" in done.stdout
    assert list(tmp_path.iterdir()) == [out], "the campaigns are gone"
