"""What do the examples print? The pages show it below their code.

python -m benchmarks.tools.examples [01 06 11 tutorial ...]        writes examples/output/*.txt, the notebook's outputs
                                                                   and those of docs/tutorial.md, all or those named
"""

import ast
import base64
import io
import json
import os
import re
import subprocess
import sys
import tempfile
from contextlib import redirect_stdout
from pathlib import Path

ROOT = Path(__file__).parents[3]
EXAMPLES = ROOT / "examples"
BLOCK = re.compile(r"```(python|sh|text)\n(.*?)```", re.DOTALL)


def ran_page(page):
    """A page whose text blocks have what the block above prints: Python in one session, sh in the working folder."""
    names, printed = {}, ""

    def block(match):
        nonlocal printed
        language, code = match.groups()
        if language == "text":
            return f"```text\n{printed}```"
        if language == "python":
            with redirect_stdout(io.StringIO()) as out:
                exec(compile(code, "page", "exec"), names)
            printed = out.getvalue()
        else:
            printed = subprocess.run(["sh", "-euc", code], check=True, capture_output=True, text=True).stdout
        return match[0]

    return BLOCK.sub(block, page)


def ran_notebook(notebook):
    """A notebook with the outputs of all cells: what they print, and the value of their last line."""
    names = {}
    for count, cell in enumerate((cell for cell in notebook["cells"] if cell["cell_type"] == "code"), 1):
        *lines, last = ast.parse("".join(cell["source"])).body
        ends = isinstance(last, ast.Expr)
        with redirect_stdout(io.StringIO()) as out:
            exec(compile(ast.Module(lines if ends else [*lines, last], []), "cell", "exec"), names)
            value = eval(compile(ast.Expression(last.value), "cell", "eval"), names) if ends else None
        text = out.getvalue().splitlines(keepends=True)
        outputs = [{"output_type": "stream", "name": "stdout", "text": text}] if text else []
        if value is not None:
            data = {
                "output_type": "execute_result",
                "execution_count": count,
                "metadata": {},
                "data": _data(value),
            }
            outputs.append(data)
        cell |= {"outputs": outputs, "execution_count": count}
    return notebook


def _data(value):
    if hasattr(value, "savefig"):
        value.savefig(image := io.BytesIO(), format="png", dpi=72)
        return {"image/png": base64.b64encode(image.getvalue()).decode(), "text/plain": ["<Figure>"]}
    shown = {"text/plain": repr(value).splitlines(keepends=True)}
    if hasattr(value, "_repr_html_"):
        shown["text/html"] = value._repr_html_().splitlines(keepends=True)
    return shown


def main(wanted):
    for path in sorted(EXAMPLES.glob("*.py")):
        if not wanted or path.name[:2] in wanted:
            done = subprocess.run([sys.executable, path], check=True, capture_output=True, text=True)
            printed = re.sub(rf"{re.escape(tempfile.gettempdir())}/tmp\w+/", "", done.stdout)
            target = EXAMPLES / "output" / f"{path.stem}.txt"
            target.write_text(printed, encoding="utf-8")
            print(f"{target}\n{printed}")
    for path in EXAMPLES.glob("*.ipynb"):
        if not wanted or path.name[:2] in wanted:
            text = json.dumps(ran_notebook(json.loads(path.read_text(encoding="utf-8"))), indent=1, ensure_ascii=False)
            path.write_text(f"{text}\n", encoding="utf-8")
    if not wanted or "tutorial" in wanted:
        path = ROOT / "docs" / "tutorial.md"
        with tempfile.TemporaryDirectory() as folder:
            os.chdir(folder)
            path.write_text(ran_page(path.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
