"""sbatch, squeue, sacct and scancel as programs that need no cluster: for tests that count calls or plant answers.

`install(folder)` writes them; each call is a line in `calls`, jobs that sbatch took are files in `jobs`,
which squeue lists. `refuse`, `silent` and `accounts` in the folder change what they say.
"""

from __future__ import annotations

import stat
from pathlib import Path

_HEAD = '#!/bin/bash\ncd {folder}\necho "$(basename "$0") $*" >> calls\nenv | grep -E "^(SLURM|SBATCH)_" >> leaked\n'
_PROGRAMS = {
    "sbatch": """[ -e refuse ] && { cat refuse >&2; exit 1; }
number=$(( $(ls jobs | wc -l) + 1 )); echo "$1" > jobs/$number; echo "Submitted batch job $number"
""",
    "squeue": """[ -e silent ] && exit 1
for job in $(ls jobs); do printf '%s\\x1fPENDING\\x1fPriority\\x1f%s\\n' "$job" "$(cat jobs/$job)"; done
""",
    "sacct": "[ -e accounts ] || { echo no accounting >&2; exit 1; }\ncat accounts\n",
    "scancel": 'for job in "$@"; do rm -f "jobs/$job"; done\n',
    "srun": "exit 1\n",
    "scontrol": "exit 1\n",
}


def install(folder: Path) -> Path:
    """The programs, in a folder for the front of PATH."""
    (folder / "jobs").mkdir(parents=True)
    for name, body in _PROGRAMS.items():
        program = folder / "bin" / name
        program.parent.mkdir(exist_ok=True)
        program.write_text(_HEAD.format(folder=folder) + body)
        program.chmod(program.stat().st_mode | stat.S_IXUSR)
    return folder / "bin"


def calls(folder: Path, program: str) -> list[str]:
    """The command lines of one program so far."""
    log = folder / "calls"
    lines = log.read_text().splitlines() if log.exists() else []
    return [line for line in lines if line.startswith(f"{program} ")]
