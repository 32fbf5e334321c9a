"""What do the examples print? The page of examples shows it below their code.

python benchmarks/tools/examples.py [01 06 ...]        writes examples/output/*.txt, all or those named
"""

import re
import subprocess
import sys
import tempfile
from pathlib import Path

EXAMPLES = Path(__file__).parents[3] / "examples"


def main():
    for path in sorted(EXAMPLES.glob("*.py")):
        if len(sys.argv) == 1 or path.name[:2] in sys.argv[1:]:
            done = subprocess.run([sys.executable, path], check=True, capture_output=True, text=True)
            printed = re.sub(rf"{re.escape(tempfile.gettempdir())}/tmp\w+/", "", done.stdout)
            target = EXAMPLES / "output" / f"{path.stem}.txt"
            target.write_text(printed, encoding="utf-8")
            print(f"{target}\n{printed}")


if __name__ == "__main__":
    main()
